/* Sums of float16 and bfloat16 numbers, with the fastest instructions that the processor has. */
#include "sums.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__x86_64__) && (__GNUC__ >= 12 || __clang_major__ >= 14)
#define HAS_FP16 1
#else
#define HAS_FP16 0
#endif

typedef void (*sum)(const uint16_t *, uint16_t *, size_t);

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/*
 * A float32 has 24 binary digits, two more than twice the 11 of float16: adding in float32 and
 * rounding twice gives the same as rounding once.
 */
#if defined(__aarch64__)
static void plain_float16(const uint16_t *own, uint16_t *other, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        __fp16 a, b;
        memcpy(&a, &own[i], sizeof a);
        memcpy(&b, &other[i], sizeof b);
        a = (__fp16)((float)a + (float)b);
        memcpy(&other[i], &a, sizeof a);
    }
}
#else
static float from_float16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00)
        return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest < 0x400)
        return float_of(sign | bits_of((float)rest * 0x1p-24f));
    return float_of(sign | ((rest << 13) + (112u << 23)));
}

static uint16_t to_float16(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (rest >= bits_of(0x1p16f))
        return (uint16_t)(sign | 0x7c00);
    /*
     * Below the smallest normal number: next to 0.5, float32 has the same steps of 2^-24 as
     * float16, and rounds to them.
     */
    if (rest < bits_of(0x1p-14f))
        return (uint16_t)(sign | (bits_of(float_of(rest) + 0.5f) - bits_of(0.5f)));
    return (uint16_t)(sign | ((rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13));
}

static void plain_float16(const uint16_t *own, uint16_t *other, size_t length)
{
    for (size_t i = 0; i < length; i++)
        other[i] = to_float16(from_float16(own[i]) + from_float16(other[i]));
}
#endif

/* Adds two bfloat16 numbers, each in the upper half of its argument; the lower halves are 0. */
static inline uint32_t sum_of_bfloat16(uint32_t a, uint32_t b)
{
    float sum = float_of(a) + float_of(b);
    uint32_t bits = bits_of(sum), rounded = bits + 0x7fff + (bits >> 16 & 1);
    return (sum != sum ? bits | 0x400000 : rounded) & 0xffff0000;
}

/*
 * Adds two numbers at a time, without branches: then the compiler vectorises the loop without
 * widening or narrowing.
 */
static inline __attribute__((always_inline)) void add_bfloat16(const uint16_t *own, uint16_t *other, size_t length)
{
    size_t i = 0;
    for (; i + 2 <= length; i += 2) {
        uint32_t a, b, c;
        memcpy(&a, own + i, sizeof a);
        memcpy(&b, other + i, sizeof b);
        c = sum_of_bfloat16(a & 0xffff0000, b & 0xffff0000) | sum_of_bfloat16(a << 16, b << 16) >> 16;
        memcpy(other + i, &c, sizeof c);
    }
    if (i < length)
        other[i] = (uint16_t)(sum_of_bfloat16((uint32_t)own[i] << 16, (uint32_t)other[i] << 16) >> 16);
}

static void plain_bfloat16(const uint16_t *own, uint16_t *other, size_t length)
{
    add_bfloat16(own, other, length);
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) static void avx2_float16(const uint16_t *own, uint16_t *other, size_t length)
{
    size_t i = 0;
    for (; i + 8 <= length; i += 8) {
        __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(own + i)));
        __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(other + i)));
        __m128i c = _mm256_cvtps_ph(_mm256_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(other + i), c);
    }
    plain_float16(own + i, other + i, length - i);
}

__attribute__((target("avx512f"))) static void avx512_float16(const uint16_t *own, uint16_t *other, size_t length)
{
    size_t i = 0;
    for (; i + 16 <= length; i += 16) {
        __m512 a = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(own + i)));
        __m512 b = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(other + i)));
        __m256i c = _mm512_cvtps_ph(_mm512_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_storeu_si256((__m256i *)(void *)(other + i), c);
    }
    plain_float16(own + i, other + i, length - i);
}

#if HAS_FP16
/* Uses the processor's float16 addition. */
__attribute__((target("avx512fp16"))) static void fp16_float16(const uint16_t *own, uint16_t *other, size_t length)
{
    size_t i = 0;
    for (; i + 32 <= length; i += 32) {
        __m512h c = _mm512_add_ph(_mm512_loadu_ph(own + i), _mm512_loadu_ph(other + i));
        _mm512_storeu_ph(other + i, c);
    }
    plain_float16(own + i, other + i, length - i);
}
#endif

__attribute__((target("avx2"))) static void avx2_bfloat16(const uint16_t *own, uint16_t *other, size_t length)
{
    add_bfloat16(own, other, length);
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) static void avx512_bfloat16(const uint16_t *own, uint16_t *other,
                                                                                 size_t length)
{
    add_bfloat16(own, other, length);
}
#endif

static const struct variant {
    const char *instructions;
    sum float16, bfloat16;
} variants[] = {
#if HAS_FP16
    {"avx512fp16", fp16_float16, avx512_bfloat16},
#endif
#if defined(__x86_64__)
    {"avx512", avx512_float16, avx512_bfloat16},
    {"avx2", avx2_float16, avx2_bfloat16},
#endif
    {"plain", plain_float16, plain_bfloat16},
};
static const struct variant *chosen = &variants[sizeof variants / sizeof *variants - 1];

static int is_supported(const char *instructions)
{
#if HAS_FP16
    if (strcmp(instructions, "avx512fp16") == 0)
        return __builtin_cpu_supports("avx512fp16") && is_supported("avx512");
#endif
#if defined(__x86_64__)
    if (strcmp(instructions, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl");
    if (strcmp(instructions, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#endif
    return strcmp(instructions, "plain") == 0;
}

int hvbench_choose_sums(const char *instructions)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const char *name = variants[i].instructions;
        if (is_supported(name) && (strcmp(instructions, "best") == 0 || strcmp(instructions, name) == 0)) {
            chosen = &variants[i];
            return 0;
        }
    }
    return -1;
}

void hvbench_sum_float16(const void *own, void *other, const int *length, void *type)
{
    (void)type;
    chosen->float16(own, other, (size_t)*length);
}

void hvbench_sum_bfloat16(const void *own, void *other, const int *length, void *type)
{
    (void)type;
    chosen->bfloat16(own, other, (size_t)*length);
}
