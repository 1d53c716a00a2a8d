/* SPDX-License-Identifier: Apache-2.0
 * The operations whose intrinsics differ between levels by their prefix alone. vector_NAME.h includes it after the type
 * vf and PS(operation), the intrinsic of that operation on vf. */
VECTOR vf vf_zero(void) { return PS(setzero)(); }
VECTOR vf vf_set1(float x) { return PS(set1)(x); }
VECTOR vf vf_load(const float *p) { return PS(loadu)(p); }
VECTOR void vf_store(float *p, vf x) { PS(storeu)(p, x); }
VECTOR vf vf_add(vf a, vf b) { return PS(add)(a, b); }
VECTOR vf vf_sub(vf a, vf b) { return PS(sub)(a, b); }
VECTOR vf vf_mul(vf a, vf b) { return PS(mul)(a, b); }
VECTOR vf vf_div(vf a, vf b) { return PS(div)(a, b); }
VECTOR vf vf_fma(vf a, vf b, vf c) { return PS(fmadd)(a, b, c); }
VECTOR vf vf_fms(vf a, vf b, vf c) { return PS(fmsub)(a, b, c); }
/* b where one of them is NaN */
VECTOR vf vf_max(vf a, vf b) { return PS(max)(a, b); }
