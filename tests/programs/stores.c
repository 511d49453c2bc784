/* What can be done with a store, and what cannot: says how each went; cluster/stores.rs knows what is
 * right. Arguments: the data node's socket, and where none is. It waits for a line of input before
 * it says what there is when the data node has gone. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tidegate.h>

static uint8_t memory[TIDEGATE_VALUE_MAX];
static const tidegate_buffer room = {memory, sizeof memory};

static tidegate_bytes bytes(const void *data, size_t length) {
    tidegate_bytes bytes = {data, length};
    return bytes;
}

static tidegate_bytes text(const char *text) { return bytes(text, strlen(text)); }

static void say(const char *what, int status) {
    printf("%s: %s\n", what, tidegate_strerror(status));
    fflush(stdout);
}

/* Opens a store that has one of three parts, and does without a tenant if there is none. */
static int open_at(const char *at, const char *tenant, tidegate_store **store) {
    tidegate_store_settings settings;
    memset(&settings, 0, sizeof settings);
    settings.size = sizeof settings;
    settings.tenant = tenant;
    settings.parts = 3;
    settings.timeout_ns = tenant != NULL ? 0 : 2000000000;
    return tidegate_store_open(at, &settings, store);
}

static void show(tidegate_store *store, const char *what, const char *key, tidegate_buffer buffer) {
    tidegate_bytes value;
    int status = tidegate_store_get(store, text(key), buffer, &value);
    printf("%s: %s, %s of %zu bytes\n", what, tidegate_strerror(status),
           value.data == NULL ? "nothing" : "a value", value.length);
}

static void lengths(tidegate_store *store) {
    static char large[TIDEGATE_VALUE_MAX + 1];
    tidegate_buffer none = {NULL, 0};
    tidegate_bytes value;
    memset(large, 'x', sizeof large);
    say("put", tidegate_store_put(store, text("k"), text("hello")));
    show(store, "get", "k", room);
    show(store, "into three bytes", "k", (tidegate_buffer){memory, 3});
    show(store, "into none", "k", none);
    say("put of nothing", tidegate_store_put(store, text("empty"), bytes(NULL, 0)));
    show(store, "get of nothing", "empty", none);
    show(store, "get of what is not there", "missing", room);
    say("put of much", tidegate_store_put(store, text("large"), bytes(large, TIDEGATE_VALUE_MAX)));
    show(store, "get of much", "large", room);
    say("put of too much", tidegate_store_put(store, text("large"), bytes(large, sizeof large)));
    say("no key", tidegate_store_get(store, bytes(NULL, 0), room, &value));
    say("a long key",
        tidegate_store_delete(store, bytes(large, TIDEGATE_KEY_MAX + 1), NULL));
    say("a null key", tidegate_store_get(store, bytes(NULL, 3), room, &value));
    say("a null buffer", tidegate_store_get(store, text("k"), (tidegate_buffer){NULL, 3}, &value));
}

static void many(tidegate_store *store) {
    enum { COUNT = 200 };
    static tidegate_lookup lookups[COUNT];
    static char keys[COUNT][16];
    static uint8_t buffers[COUNT][16];
    int i, status, found = 0, missing = 0, wrong = 0;
    for (i = 0; i < COUNT; i++) {
        int length = snprintf(keys[i], sizeof keys[i], "many %d", i);
        lookups[i].key = bytes(keys[i], length);
        lookups[i].buffer.data = buffers[i];
        lookups[i].buffer.capacity = sizeof buffers[i];
        if (i % 2 == 0) {
            wrong += tidegate_store_put(store, lookups[i].key, lookups[i].key) != TIDEGATE_OK;
        }
    }
    status = tidegate_store_get_many(store, lookups, COUNT);
    for (i = 0; i < COUNT; i++) {
        tidegate_bytes key = lookups[i].key, value = lookups[i].value;
        missing += value.data == NULL;
        found += value.data != NULL && value.length == key.length &&
                 memcmp(value.data, key.data, key.length) == 0;
        wrong += lookups[i].status != TIDEGATE_OK;
    }
    printf("many: %s, %d found, %d missing, %d wrong\n", tidegate_strerror(status), found, missing,
           wrong);
    lookups[100].buffer.capacity = 2;
    lookups[7].key.length = 0;
    status = tidegate_store_get_many(store, lookups + 7, 94);
    printf("two of many: %s, %s, and of others %s\n", tidegate_strerror(lookups[7].status),
           tidegate_strerror(lookups[100].status), tidegate_strerror(lookups[98].status));
    printf("together: %s\n", status == lookups[7].status ? "the first's" : "not the first's");
    say("none of many", tidegate_store_get_many(store, NULL, 0));
}

static atomic_int wrong;

static void *work(void *argument) {
    tidegate_store *store = argument;
    char key[32];
    uint8_t buffer[32];
    int i, length = snprintf(key, sizeof key, "%lu", (unsigned long)pthread_self());
    for (i = 0; i < 50; i++) {
        tidegate_bytes value, put = bytes(&i, sizeof i);
        wrong += tidegate_store_put(store, bytes(key, length), put) != TIDEGATE_OK;
        wrong += tidegate_store_get(store, bytes(key, length), (tidegate_buffer){buffer, 32},
                                    &value) != TIDEGATE_OK;
        wrong += value.length != sizeof i || memcmp(value.data, &i, sizeof i) != 0;
    }
    return NULL;
}

static void threads(tidegate_store *store) {
    pthread_t threads[4];
    int i;
    for (i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, store);
    for (i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    printf("threads: %d wrong\n", wrong);
}

static void child(tidegate_store *store) {
    int status;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        alarm(20); /* ends a child that hangs */
        show(store, "child gets", "k", room);
        say("child closes", tidegate_store_close(store));
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("child ended: %d\n", status);
}

int main(int count, char **arguments) {
    tidegate_store *store, *nobody;
    int had[2] = {-1, -1};
    if (count != 3) return 2;
    say("open", open_at(arguments[1], "web", &store));
    lengths(store);
    many(store);
    threads(store);
    tidegate_store_delete(store, text("empty"), &had[0]);
    tidegate_store_delete(store, text("empty"), &had[1]);
    printf("deleted: %d %d\n", had[0], had[1]);
    child(store);
    show(store, "parent gets", "k", room);
    say("open as nobody's tenant", open_at(arguments[1], "wbe", &nobody));
    say("open where nobody is", open_at(arguments[2], "web", &nobody));
    say("open as nobody", open_at(arguments[1], NULL, &nobody));
    show(nobody, "nobody gets", "k", room);
    printf("ready\n");
    fflush(stdout);
    (void)!getchar();
    show(store, "with a reservation", "k", room);
    /* It may use up what it had before. */
    do {
        tidegate_bytes value;
        had[0] = tidegate_store_get(nobody, text("k"), room, &value);
    } while (had[0] == TIDEGATE_OK);
    say("without", had[0]);
    say("close", tidegate_store_close(nobody));
    say("close", tidegate_store_close(store));
    return 0;
}
