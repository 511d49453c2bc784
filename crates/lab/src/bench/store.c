/* A store in C as a contestant of `tidegate-lab bench`: see child.rs for what it is asked, and store.rs
 * for what it is about. The header stands before this. A line of input that is no window is
 * answered with what was wrong, or "ready".
 *
 * Arguments: the data node's socket, how many keys there are, and how many to look for at once. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MOST = 64 };

static uint8_t memory[MOST][TIDEGATE_VALUE_MAX];
static uint64_t names[MOST];
static tidegate_lookup lookups[MOST];
static tidegate_store *store;
static uint64_t keys, many, state = 1;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static long switches(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

static uint64_t any(void) {
    state = state * 0x5851F42D4C957F2D + 1;
    return (state >> 33) % keys;
}

static int look_one(uint64_t name) {
    tidegate_bytes key = {(const uint8_t *)&name, sizeof name}, value;
    tidegate_buffer buffer = {memory[0], sizeof memory[0]};
    return tidegate_store_get(store, key, buffer, &value) == TIDEGATE_OK &&
           value.length == sizeof memory[0];
}

static int look_many(void) {
    uint64_t i;
    int whole = 1;
    for (i = 0; i < many; i++) names[i] = any();
    whole &= tidegate_store_get_many(store, lookups, many) == TIDEGATE_OK;
    for (i = 0; i < many; i++) whole &= lookups[i].value.length == sizeof memory[i];
    return whole;
}

/* Looks for 64 keys; whether all of them were there. */
static int block(void) {
    uint64_t call;
    int whole = 1;
    for (call = 0; call < 64; call += many) whole &= many == 1 ? look_one(any()) : look_many();
    return whole;
}

/* Opens the store, and finds out where all keys are. */
static int begin(char **arguments) {
    tidegate_store_settings settings;
    uint64_t i;
    int whole = 1;
    keys = strtoull(arguments[2], NULL, 10);
    many = strtoull(arguments[3], NULL, 10);
    memset(&settings, 0, sizeof settings);
    settings.size = sizeof settings;
    settings.locations = (uint32_t)(2 * keys);
    for (i = 0; i < MOST; i++) {
        lookups[i].key.data = (const uint8_t *)&names[i];
        lookups[i].key.length = sizeof names[i];
        lookups[i].buffer.data = memory[i];
        lookups[i].buffer.capacity = sizeof memory[i];
    }
    if (tidegate_store_open(arguments[1], &settings, &store) != TIDEGATE_OK) return 0;
    for (i = 0; whole && i < keys; i++) whole = look_one(i);
    return whole;
}

int main(int count, char **arguments) {
    char line[256];
    int is_ready = count == 4 && begin(arguments);
    while (fgets(line, sizeof line, stdin) != NULL) {
        double length, begun, passed;
        long before, calls = 0;
        int core, whole;
        cpu_set_t set;
        if (sscanf(line, "%lf %d", &length, &core) != 2) {
            puts(is_ready ? "ready" : tidegate_error_detail());
            fflush(stdout);
            continue;
        }
        CPU_ZERO(&set);
        CPU_SET((size_t)core, &set);
        sched_setaffinity(0, sizeof set, &set);
        whole = block();
        before = switches();
        begun = now();
        do {
            whole &= block();
            calls += 64;
            passed = now() - begun;
        } while (passed < length);
        if (whole && switches() == before) {
            printf("%.3f\n", passed / (double)calls);
        } else {
            puts("-");
        }
        fflush(stdout);
    }
    tidegate_store_close(store);
    return 0;
}
