/* A program that keeps keys and values in a data node's memory.
 *
 * From the root of the repository, while this runs:
 *   tidegate up examples/data-node.toml --state target/memory
 * do:
 *   cargo build --release -p tidegate-capi
 *   cc -Iinclude examples/c/store.c -Ltarget/release -ltidegate -Wl,-rpath,$PWD/target/release
 *   ./a.out target/memory/memory.sock web
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tidegate.h>

/* Ends the program if a call did not go well. */
static void must(int status) {
    if (status != TIDEGATE_OK) {
        fprintf(stderr, "%s: %s\n", tidegate_strerror(status), tidegate_error_detail());
        exit(1);
    }
}

static tidegate_bytes text(const char *text) {
    tidegate_bytes bytes = {(const uint8_t *)text, strlen(text)};
    return bytes;
}

static void show(const char *key, tidegate_bytes value) {
    if (value.data == NULL) {
        printf("%s: no value\n", key);
    } else {
        printf("%s: %.*s\n", key, (int)value.length, (const char *)value.data);
    }
}

static void one(tidegate_store *store) {
    static uint8_t memory[TIDEGATE_VALUE_MAX];
    tidegate_buffer buffer = {memory, sizeof memory};
    tidegate_bytes value;
    must(tidegate_store_put(store, text("greeting"), text("hello")));
    must(tidegate_store_get(store, text("greeting"), buffer, &value));
    show("greeting", value);
    must(tidegate_store_get(store, text("nothing"), buffer, &value));
    show("nothing", value);
}

static void many(tidegate_store *store) {
    static const char *const keys[] = {"red", "green", "blue", "ultraviolet"};
    static uint8_t memory[4][TIDEGATE_VALUE_MAX];
    tidegate_lookup lookups[4];
    int i;
    memset(lookups, 0, sizeof lookups);
    for (i = 0; i < 4; i++) {
        lookups[i].key = text(keys[i]);
        lookups[i].buffer.data = memory[i];
        lookups[i].buffer.capacity = sizeof memory[i];
        if (i < 3) {
            must(tidegate_store_put(store, text(keys[i]), text("a colour")));
        }
    }
    must(tidegate_store_get_many(store, lookups, 4));
    for (i = 0; i < 4; i++) {
        show(keys[i], lookups[i].value);
    }
}

int main(int count, char **arguments) {
    tidegate_store_settings settings;
    tidegate_store *store;
    int had, status;
    if (count != 3) {
        fprintf(stderr, "usage: %s SOCKET TENANT\n", arguments[0]);
        return 2;
    }
    memset(&settings, 0, sizeof settings);
    settings.size = sizeof settings;
    settings.tenant = arguments[2];
    must(tidegate_store_open(arguments[1], &settings, &store));
    one(store);
    many(store);
    status = tidegate_store_get(store, text(""), (tidegate_buffer){NULL, 0}, &(tidegate_bytes){0});
    printf("an empty key: %s\n", tidegate_strerror(status));
    must(tidegate_store_delete(store, text("greeting"), &had));
    printf("deleted: %d\n", had);
    must(tidegate_store_close(store));
    return 0;
}
