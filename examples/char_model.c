/* SPDX-License-Identifier: Apache-2.0
 * Training a real, if small, transformer: two layers that learn to spell a text, character by character. Attention and its
 * gradients are attn's, everything else is here. The same model is trained beside it with the float64 reference doing the
 * attention; both must lose alike, step by step.
 *
 *     char_model [auto | cpu | cuda] [STEPS] */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 4, T = 32, ROWS = B * T, C = 32, H = 2, D = C / H, LAYERS = 2, WIDE = 4 * C };

static const char text[] =
    "the quick brown fox jumps over the lazy dog, and the dog, who has seen many foxes jump, does not get up. "
    "the fox jumps again, and again the dog stays where it is. so the fox sits down beside the dog, and the two of them "
    "look at the river, where many quick brown fishes jump over nothing at all.";
static const char alphabet[] = " abcdefghijklmnopqrstuvwxyz,.";
enum { LETTERS = sizeof alphabet - 1, LENGTH = sizeof text - 1 };

/* y = x W', with W [outputs][inputs]. */
typedef struct layer {
    float qkv[3 * C * C], out[C * C], wide[WIDE * C], narrow[C * WIDE];
} layer;
typedef struct parameters {
    float letter[LETTERS * C]; /* in and, transposed, out */
    layer layer[LAYERS];
} parameters;
enum { PARAMETERS = sizeof(parameters) / sizeof(float) };

/* What backward needs of forward, [ROWS][...]. */
typedef struct activations {
    float x[ROWS * C], norm[ROWS * C];        /* before attention, and normalised */
    float qkv[ROWS * 3 * C], mixed[ROWS * C]; /* attention's: q, k and v side by side, each [H][D] */
    float lse[B * H * T];
    float y[ROWS * C], norm2[ROWS * C], wide[ROWS * WIDE], squared[ROWS * WIDE]; /* behind it */
} activations;

typedef struct model {
    attn_context *ctx;
    parameters p, gradient, first, second; /* the last two are Adam's */
    activations layer[LAYERS];
    float last[ROWS * C], norm[ROWS * C], logit[ROWS * LETTERS];
} model;

static int letter[ROWS], next[ROWS]; /* of a batch, and what follows */

static void must(attn_status s, const char *what)
{
    if (s == ATTN_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, attn_status_string(s), attn_last_error());
    exit(1);
}

static float uniform(void) /* -1 .. 1 */
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

/* ---- the pieces, each with its way back ---- */

static void multiply(int inputs, int outputs, const float *x, const float *w, float *y)
{
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < outputs; o++) {
            float sum = 0;
            for (int i = 0; i < inputs; i++) sum += x[r * inputs + i] * w[o * inputs + i];
            y[r * outputs + o] = sum;
        }
}

/* dx is set, dw is added to. */
static void multiply_back(int inputs, int outputs, const float *x, const float *w, const float *dy, float *dx,
                          float *dw)
{
    memset(dx, 0, sizeof *dx * (size_t)(ROWS * inputs));
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < outputs; o++) {
            const float d = dy[r * outputs + o];
            for (int i = 0; i < inputs; i++) {
                dx[r * inputs + i] += d * w[o * inputs + i];
                dw[o * inputs + i] += d * x[r * inputs + i];
            }
        }
}

static float inverse_size(const float *x)
{
    float sum = 0;
    for (int i = 0; i < C; i++) sum += x[i] * x[i];
    return 1 / sqrtf(sum / C + 1e-5f);
}

static void normalise(const float *x, float *y)
{
    for (int r = 0; r < ROWS; r++, x += C, y += C) {
        const float s = inverse_size(x);
        for (int i = 0; i < C; i++) y[i] = x[i] * s;
    }
}

/* Added to dx. */
static void normalise_back(const float *x, const float *dy, float *dx)
{
    for (int r = 0; r < ROWS; r++, x += C, dy += C, dx += C) {
        const float s = inverse_size(x);
        float dot = 0;
        for (int i = 0; i < C; i++) dot += dy[i] * x[i];
        for (int i = 0; i < C; i++) dx[i] += s * (dy[i] - x[i] * dot * s * s / C);
    }
}

/* Of rows that have q, k and v side by side. */
static attn_tensor third(float *rows, int n)
{
    attn_tensor t = attn_bshd(rows + n * C, ATTN_F32, B, H, T, D);
    t.stride[0] = T * 3 * C;
    t.stride[2] = 3 * C;
    return t;
}

/* Nearer characters count more (ALiBi), which tells the model where it is. */
static attn_problem attention(activations *a)
{
    static const float slopes[H] = {0.5f, 0.0625f};
    attn_problem p = ATTN_PROBLEM_INIT;
    p.mask = ATTN_CAUSAL;
    p.alibi = slopes;
    p.q = third(a->qkv, 0);
    p.k = third(a->qkv, 1);
    p.v = third(a->qkv, 2);
    p.out = attn_bshd(a->mixed, ATTN_F32, B, H, T, D);
    p.lse = attn_bhsd(a->lse, ATTN_F32, B, H, T, 1); /* without it there is no backward */
    return p;
}

/* ---- the model ---- */

static void layer_forward(model *m, int n)
{
    activations *a = &m->layer[n];
    const layer *w = &m->p.layer[n];
    float *result = n + 1 < LAYERS ? m->layer[n + 1].x : m->last;
    normalise(a->x, a->norm);
    multiply(C, 3 * C, a->norm, w->qkv, a->qkv);
    const attn_problem p = attention(a);
    must(attn_forward(m->ctx, &p, NULL), "attn_forward");
    multiply(C, C, a->mixed, w->out, a->y);
    for (int i = 0; i < ROWS * C; i++) a->y[i] += a->x[i];
    normalise(a->y, a->norm2);
    multiply(C, WIDE, a->norm2, w->wide, a->wide);
    for (int i = 0; i < ROWS * WIDE; i++) a->squared[i] = a->wide[i] > 0 ? a->wide[i] * a->wide[i] : 0;
    multiply(WIDE, C, a->squared, w->narrow, result);
    for (int i = 0; i < ROWS * C; i++) result[i] += a->y[i];
}

/* dx: of the layer's result on the way in, of its input on the way out. */
static void layer_backward(model *m, int n, float *dx)
{
    static float dwide[ROWS * WIDE], dnorm[ROWS * C], dmixed[ROWS * C], dqkv[ROWS * 3 * C];
    activations *a = &m->layer[n];
    const layer *w = &m->p.layer[n];
    layer *dw = &m->gradient.layer[n];
    multiply_back(WIDE, C, a->squared, w->narrow, dx, dwide, dw->narrow);
    for (int i = 0; i < ROWS * WIDE; i++) dwide[i] *= a->wide[i] > 0 ? 2 * a->wide[i] : 0;
    multiply_back(C, WIDE, a->norm2, w->wide, dwide, dnorm, dw->wide);
    normalise_back(a->y, dnorm, dx);
    multiply_back(C, C, a->mixed, w->out, dx, dmixed, dw->out);
    const attn_problem p = attention(a);
    attn_grads g = ATTN_GRADS_INIT;
    g.dout = attn_bshd(dmixed, ATTN_F32, B, H, T, D);
    g.dq = third(dqkv, 0);
    g.dk = third(dqkv, 1);
    g.dv = third(dqkv, 2);
    must(attn_backward(m->ctx, &p, &g, NULL), "attn_backward");
    multiply_back(C, 3 * C, a->norm, w->qkv, dqkv, dnorm, dw->qkv);
    normalise_back(a->x, dnorm, dx);
}

/* Of one row: -log P(the next character), and its gradient. */
static double row_loss(const float *logit, int wanted, float *dlogit)
{
    float most = logit[0], total = 0;
    for (int o = 1; o < LETTERS; o++) most = fmaxf(most, logit[o]);
    for (int o = 0; o < LETTERS; o++) total += expf(logit[o] - most);
    for (int o = 0; o < LETTERS; o++) dlogit[o] = (expf(logit[o] - most) / total - (o == wanted ? 1.0f : 0.0f)) / ROWS;
    return (double)(most + logf(total) - logit[wanted]);
}

/* The mean of a batch; leaves all gradients. */
static double loss(model *m)
{
    static float dlogit[ROWS * LETTERS], dnorm[ROWS * C], dx[ROWS * C];
    double sum = 0;
    memset(&m->gradient, 0, sizeof m->gradient);
    memset(dx, 0, sizeof dx);
    for (int r = 0; r < ROWS; r++) memcpy(m->layer[0].x + r * C, m->p.letter + letter[r] * C, C * sizeof(float));
    for (int n = 0; n < LAYERS; n++) layer_forward(m, n);
    normalise(m->last, m->norm);
    multiply(C, LETTERS, m->norm, m->p.letter, m->logit);
    for (int r = 0; r < ROWS; r++) sum += row_loss(m->logit + r * LETTERS, next[r], dlogit + r * LETTERS);
    multiply_back(C, LETTERS, m->norm, m->p.letter, dlogit, dnorm, m->gradient.letter);
    normalise_back(m->last, dnorm, dx);
    for (int n = LAYERS - 1; n >= 0; n--) layer_backward(m, n, dx);
    for (int i = 0; i < ROWS * C; i++) m->gradient.letter[letter[i / C] * C + i % C] += dx[i];
    return sum / ROWS;
}

/* Adam (Kingma and Ba, 2014). */
static void descend(model *m, int step)
{
    float *p = (float *)&m->p, *g = (float *)&m->gradient, *first = (float *)&m->first, *second = (float *)&m->second;
    const float rate = 0.01f, keep = 0.9f, keep_squares = 0.99f;
    const float of_first = 1 - powf(keep, (float)step), of_second = 1 - powf(keep_squares, (float)step);
    for (int i = 0; i < PARAMETERS; i++) {
        first[i] = keep * first[i] + (1 - keep) * g[i];
        second[i] = keep_squares * second[i] + (1 - keep_squares) * g[i] * g[i];
        p[i] -= rate * (first[i] / of_first) / (sqrtf(second[i] / of_second) + 1e-6f);
    }
}

static model *create(attn_backend backend)
{
    attn_config config = ATTN_CONFIG_INIT;
    model *m = calloc(1, sizeof *m);
    if (!m) exit(1);
    config.backend = backend;
    must(attn_create(&config, &m->ctx), "attn_create");
    return m;
}

static void destroy(model *m)
{
    attn_destroy(m->ctx);
    free(m);
}

static void draw_batch(void)
{
    for (int b = 0; b < B; b++) {
        const int from = (int)((uniform() + 1) / 2 * (LENGTH - T - 1));
        for (int t = 0; t < T; t++) {
            letter[b * T + t] = (int)(strchr(alphabet, text[from + t]) - alphabet);
            next[b * T + t] = (int)(strchr(alphabet, text[from + t + 1]) - alphabet);
        }
    }
}

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "auto";
    const int steps = argc > 2 ? atoi(argv[2]) : 100;
    const int known = !strcmp(device, "auto") || !strcmp(device, "cpu") || !strcmp(device, "cuda");
    if (!known || steps < 1) {
        fprintf(stderr, "usage: %s [auto | cpu | cuda] [STEPS]\n", argv[0]);
        return 2;
    }
    model *m = create(device[0] == 'a' ? ATTN_BACKEND_AUTO : device[1] == 'p' ? ATTN_BACKEND_CPU : ATTN_BACKEND_CUDA);
    model *judge = create(ATTN_BACKEND_REFERENCE);
    for (int i = 0; i < PARAMETERS; i++) ((float *)&m->p)[i] = 0.2f * uniform();
    judge->p = m->p;
    double first = 0, last = 0, worst = 0;
    for (int step = 1; step <= steps; step++) {
        draw_batch();
        last = loss(m);
        const double expected = loss(judge), error = fabs(last - expected);
        if (step == 1) first = last;
        if (error > worst) worst = error;
        if (step % 20 == 0 || step == 1) printf("step %3d: loss %.5f, with the reference %.5f\n", step, last, expected);
        descend(m, step);
        descend(judge, step);
    }
    printf("the losses differ by %.1e at most\n", worst);
    destroy(m);
    destroy(judge);
    return !(last < 0.5 * first && worst < 0.01);
}
