/* Parses the compact decision table and looks up its rules. */
#include "table.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node_memory.h"

#define FIRST_LINE "hvscale-collectives 1\n"
#define LAST_LINE "check "
enum { MAX_BYTES = 1 << 24, MAX_CHUNK = 1 << 30, MAX_DEPTH = 1024 };

struct rule {
    int ranks, ranks_per_node;
    uint64_t first, last; /* bytes, both inclusive */
    struct choice choice;
};

static struct {
    struct rule *rules;
    size_t count;
    uint64_t checksum;
    char made_with[32];
} table;

/*
 * The rule of `table_replace`. With four nodes and 1 Gbit/s each, chunks of 16 and 32 KiB were the
 * fastest for 1 and 16 MiB: larger ones exceed Open MPI's eager limit of 64 KB. For 64 and 256 KiB
 * the chunk made little difference.
 */
static struct rule only_rule = {
    .first = 64 << 10,
    .last = UINT64_MAX,
    .choice = {.chunk = 32 << 10, .depth = 16, .radix = 2},
};
static bool replaced; /* only_rule is used instead of the file's rules */

static const char *const names[ALGORITHMS] = {"library", "flat", "chain", "k-nomial", "two-level"};

const char *algorithm_name(enum algorithm algorithm)
{
    return names[algorithm];
}

enum algorithm algorithm_named(const char *name)
{
    enum algorithm found = LIBRARY;
    while (found < ALGORITHMS && strcmp(names[found], name) != 0)
        found++;
    return found;
}

bool choice_valid(const struct choice *choice)
{
    if (choice->algorithm == LIBRARY)
        return true;
    uint64_t largest = choice->algorithm == TWO_LEVEL ? NODE_MEMORY_BYTES / 2 : MAX_CHUNK;
    return choice->algorithm < ALGORITHMS && choice->chunk >= 1 && choice->chunk <= largest && choice->depth >= 1 &&
        choice->depth <= MAX_DEPTH && choice->radix >= 2;
}

/* FNV-1a with 64 bits. */
static uint64_t hash(const char *text, size_t length)
{
    uint64_t sum = 0xCBF29CE484222325u;
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ (unsigned char)text[i]) * 0x100000001B3u;
    return sum;
}

static int by_ranks(const void *a, const void *b)
{
    int one = ((const struct rule *)a)->ranks, other = ((const struct rule *)b)->ranks;
    return (one > other) - (one < other);
}

static bool read_made_with(const char *line)
{
    int end = 0;
    return sscanf(line, "mpi %31[a-z0-9]%n", table.made_with, &end) == 1 && line[end] == '\0';
}

static bool read_rule(const char *line, struct rule *rule)
{
    char algorithm[16];
    int end = 0;
    int found = sscanf(line, "broadcast %d %d %" SCNu64 " %" SCNu64 " %15s %" SCNu64 " %d %d%n", &rule->ranks,
                       &rule->ranks_per_node, &rule->first, &rule->last, algorithm, &rule->choice.chunk,
                       &rule->choice.depth, &rule->choice.radix, &end);
    if (found != 8 || line[end] != '\0' || rule->ranks < 1 || rule->ranks_per_node < 1 || rule->first > rule->last)
        return false;
    rule->choice.algorithm = algorithm_named(algorithm);
    return choice_valid(&rule->choice);
}

/* Reads the file as a string; returns NULL and sets errno if that fails. */
static char *read_text(const char *path, size_t *length)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    char *text = malloc(MAX_BYTES + 1);
    *length = text != NULL ? fread(text, 1, MAX_BYTES, file) : 0;
    if (text != NULL)
        text[*length] = '\0';
    fclose(file);
    return text;
}

static const char *read_rules(char *text, size_t length)
{
    free(table.rules);
    memset(&table, 0, sizeof table);
    char *check = length > strlen(LAST_LINE) ? strstr(text, "\n" LAST_LINE) : NULL;
    if (strncmp(text, FIRST_LINE, strlen(FIRST_LINE)) != 0)
        return "it is not a decision table of hvscale";
    if (check == NULL || strlen(text) != length)
        return "it is truncated";
    check++;
    uint64_t sum = hash(text, (size_t)(check - text));
    char expected[64];
    snprintf(expected, sizeof expected, LAST_LINE "%016" PRIx64 "\n", sum);
    if (strcmp(check, expected) != 0)
        return "its checksum is wrong";
    *check = '\0';
    size_t lines = 0;
    for (const char *at = text; *at != '\0'; at++)
        lines += *at == '\n';
    table.rules = calloc(lines, sizeof *table.rules);
    if (table.rules == NULL)
        return strerror(errno);
    for (char *line = text + strlen(FIRST_LINE), *next; *line != '\0'; line = next) {
        next = strchr(line, '\n');
        *next++ = '\0';
        if (table.made_with[0] == '\0' && read_made_with(line))
            continue;
        if (!read_rule(line, &table.rules[table.count])) {
            table.count = 0;
            return "it has a rule that this version of hvscale does not know";
        }
        table.count++;
    }
    qsort(table.rules, table.count, sizeof *table.rules, by_ranks);
    table.checksum = sum != 0 ? sum : 1;
    return NULL;
}

const char *table_read(const char *path)
{
    size_t length;
    char *text = read_text(path, &length);
    if (text == NULL)
        return strerror(errno);
    const char *wrong = read_rules(text, length);
    free(text);
    return wrong;
}

bool table_replace(const char *algorithm)
{
    bool by_none = *algorithm == '\0' || strcmp(algorithm, "off") == 0;
    enum algorithm named = by_none ? LIBRARY : algorithm_named(algorithm);
    if (named == ALGORITHMS)
        return false;
    only_rule.choice.algorithm = named;
    replaced = *algorithm != '\0';
    return true;
}

const char *table_made_with(void)
{
    return replaced ? "" : table.made_with;
}

uint64_t table_checksum(void)
{
    const char *name = names[only_rule.choice.algorithm];
    return replaced ? hash(name, strlen(name)) : table.checksum;
}

/*
 * Whether `a` is nearer to `wanted` than `b`, by ratio; of two equal ratios, the smaller number is
 * nearer.
 */
static bool nearer(int a, int b, int wanted)
{
    double ratio_a = a > wanted ? (double)a / wanted : (double)wanted / a;
    double ratio_b = b > wanted ? (double)b / wanted : (double)wanted / b;
    return ratio_a < ratio_b || (ratio_a == ratio_b && a < b);
}

struct rules table_rules(int ranks)
{
    struct rules found = {0};
    if (replaced) {
        bool is_own = only_rule.choice.algorithm != LIBRARY;
        return (struct rules){.first = &only_rule, .count = 1, .ranks = ranks, .any_own_algorithm = is_own};
    }
    for (size_t i = 0; i < table.count; i++)
        if (found.ranks == 0 || nearer(table.rules[i].ranks, found.ranks, ranks))
            found.ranks = table.rules[i].ranks;
    for (size_t i = 0; i < table.count; i++) {
        if (table.rules[i].ranks != found.ranks)
            continue;
        if (found.count++ == 0)
            found.first = &table.rules[i];
        found.any_own_algorithm = found.any_own_algorithm || table.rules[i].choice.algorithm != LIBRARY;
    }
    return found;
}

static bool applies(const struct rule *rule, uint64_t bytes)
{
    return rule->first <= bytes && bytes <= rule->last;
}

bool table_may_choose(const struct rules *rules, uint64_t bytes)
{
    for (size_t i = 0; i < rules->count; i++)
        if (applies(&rules->first[i], bytes) && rules->first[i].choice.algorithm != LIBRARY)
            return true;
    return false;
}

struct choice table_choose(const struct rules *rules, int ranks_per_node, uint64_t bytes)
{
    int per_node = 0;
    for (size_t i = 0; i < rules->count; i++)
        if (per_node == 0 || nearer(rules->first[i].ranks_per_node, per_node, ranks_per_node))
            per_node = rules->first[i].ranks_per_node;
    for (size_t i = 0; i < rules->count; i++)
        if (rules->first[i].ranks_per_node == per_node && applies(&rules->first[i], bytes))
            return rules->first[i].choice;
    return (struct choice){.algorithm = LIBRARY};
}
