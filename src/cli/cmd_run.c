/* SPDX-License-Identifier: Apache-2.0
 * `attn run`: attention on arrays from files. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

static const char help[] = "Usage: attn run Q.npy K.npy V.npy -o OUT.npy [OPTIONS]\n"
                           "\n"
                           "Computes softmax(scale * Q K' + bias, masked) V on arrays in NPY files (NumPy).\n"
                           "Q is [batch, heads, tokens, features]; K and V may have fewer heads and other\n"
                           "tokens. Arrays of three axes, without the batch, are a batch of one. Float16,\n"
                           "float32 and float64 are read; float64 is computed as float32.\n"
                           "\n"
                           "Arrays:\n"
                           "  --layout bhsd|bshd    Order of the axes of Q, K, V, gradients and output:\n"
                           "                        heads before tokens (default) or tokens before heads\n"
                           "  --dtype T             Convert Q, K, V and the gradient to f32, f16 or bf16\n"
                           "  --kv-dtype T          Convert K and V to f32, f16, bf16, or quantise them to\n"
                           "                        f8_e4m3, f8_e5m2, i8, q8_0 or q4_0\n"
                           "  --q-lengths N.npy     Used tokens of each sequence of the batch, integers [B];\n"
                           "  --kv-lengths N.npy    the rest is padding\n"
                           "\n"
                           "Masks and scores:\n"
                           "  --causal              Keys up to the one on the diagonal\n"
                           "  --window L,R          L keys left, R keys right of the diagonal; '-' is open\n"
                           "  --align A             The diagonal: bottom-right (default: the last query\n"
                           "                        meets the last key), top-left, or N: query i meets key\n"
                           "                        i + N\n"
                           "  --scale S             Factor of the scores; 0 (default) is 1/sqrt(features)\n"
                           "  --softcap C           C * tanh(score / C); 0 (default) is off\n"
                           "  --bias B.npy          [B, H, SQ, SK], each axis may be 1, leading ones absent:\n"
                           "                        floats are added, bool keeps where true\n"
                           "  --alibi SLOPES.npy    Slopes [H] or [B, H]\n"
                           "  --sinks S.npy         A logit a head, [H], that joins the denominator only\n"
                           "  --dropout P           Drop with probability P;\n"
                           "  --seed N, --offset N  the mask is a pure function of these numbers\n"
                           "\n"
                           "Results (each is written whole or not at all, after all was computed):\n"
                           "  -o, --out OUT.npy     The output, float16 for f16, else float32\n"
                           "  --lse LSE.npy         Logarithm of the softmax denominator, [B, H, SQ]\n"
                           "  --keep KEEP.npy       The dropout mask, bool [B, H, SQ, SK]\n"
                           "  --grad-out DO.npy     Gradient of the output; with it and, if wanted,\n"
                           "  --grad-lse DLSE.npy   the gradient of the LSE, these are computed:\n"
                           "  --dq, --dk, --dv, --dbias, --dsinks FILE\n"
                           "\n"
                           "Execution:\n"
                           "  --device D            auto (default), cpu, cuda, cuda:N, or reference:\n"
                           "                        float64, slow, the judge of the others\n"
                           "  --threads N           CPU threads; default: one a physical core\n"
                           "  --splits N            Cut the keys into N pieces; default: the library's rule\n"
                           "  --force WORDS         Pin automatic choices, such as isa=scalar,threads=4\n"
                           "  --repeat N            Measured calls, after one to warm up (default 1); the\n"
                           "                        median is printed. GFLOP/s count visible pairs only\n"
                           "\n"
                           "Checks (exit status 1 if one fails; results are written all the same):\n"
                           "  --check               Compare with the float64 reference by the accuracy rule\n"
                           "  --expect E.npy        Compare the output with an array;\n"
                           "  --tolerance T         allowed: T * max|E| (default 1e-4, for 16 bits 1e-3)\n"
                           "\n"
                           "  --json                Print JSON\n"
                           "  --help                Show this page\n"
                           "\n"
                           "Examples:\n"
                           "  attn run Q.npy K.npy V.npy --causal --check -o OUT.npy\n"
                           "  attn run Q.npy K.npy V.npy --window 1024,0 --kv-dtype q8_0 --lse LSE.npy\n"
                           "  attn run Q.npy K.npy V.npy --grad-out DO.npy --dq DQ.npy --dk DK.npy\n";

static const char *const result_options[RUN_RESULTS] = {"--out", "--lse",   "--dq",     "--dk",
                                                        "--dv",  "--dbias", "--dsinks", "--keep"};

static int check_outputs(struct run_job *job)
{
    for (int r = 0; r < RUN_RESULTS; r++) {
        const char *path = job->options->results[r];
        if (!path) continue;
        struct cli_output *output = &job->outputs[job->output_count++];
        output->option = result_options[r];
        output->path = path;
        int status = cli_output_check(output);
        if (status) return status;
        for (struct cli_output *other = job->outputs; other < output; other++)
            if (output->target && other->target && strcmp(output->target, other->target) == 0)
                return cli_fail(CLI_BAD_INPUT, "%s %s: the same file as %s", output->option, path, other->option);
    }
    return CLI_OK;
}

static int write_outputs(struct run_job *job)
{
    int status = run_store(job), n = 0;
    for (int r = 0; r < RUN_RESULTS; r++)
        if (job->options->results[r]) job->outputs[n++].array = job->results[r].npy;
    return status ? status : cli_output_write(job->outputs, job->output_count);
}

static int fail_wrong(const struct run_job *job)
{
    for (int i = 0; i < job->verdict_count; i++) {
        const struct run_verdict *v = &job->verdicts[i];
        if (v->good) continue;
        const char *against = i + 1 == job->verdict_count && job->options->expect ? "the output differs from " : "";
        if (v->misplaced)
            return cli_fail(CLI_WRONG_RESULT,
                            "wrong result: %s%s: %lld numbers are not finite where they should be or "
                            "the reverse",
                            against, v->what, (long long)v->misplaced);
        return cli_fail(CLI_WRONG_RESULT, "wrong result: %s%s by %.3g, allowed are %.3g", against, v->what, v->error,
                        v->allowed);
    }
    return CLI_OK;
}

static int run_job(struct run_job *job)
{
    int status = check_outputs(job);
    if (!status) status = run_load_inputs(job);
    if (!status) status = run_compute(job);
    if (!status && job->options->check) status = run_check(job);
    if (!status && job->options->expect) status = run_expect(job);
    if (!status) status = write_outputs(job);
    if (status) return status;
    run_report(job);
    return fail_wrong(job);
}

static int cmd_run(int argc, char **argv)
{
    struct run_options options;
    int status = run_parse_options(argc, argv, &options);
    if (status) return status;
    struct run_job job = {.options = &options, .problem = ATTN_PROBLEM_INIT, .grads = ATTN_GRADS_INIT};
    status = run_job(&job);
    cli_output_free(job.outputs, job.output_count);
    attn_destroy(job.context);
    for (int i = 0; i < job.block_count; i++) free(job.blocks[i]);
    return status;
}

const struct cli_command cli_cmd_run = {"run", "Attention on arrays in NPY files", help, cmd_run, NULL};
