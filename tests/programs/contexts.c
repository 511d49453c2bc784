/* Writes in two contexts and in none, one inside the other, in two threads. */

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tidegate.h"

static const char block[65536];

static void put(const char *name, int times) {
    int file = open(name, O_WRONLY | O_CREAT | O_APPEND, 0644);
    for (int round = 0; round < times; round++) {
        if (file < 0 || write(file, block, sizeof block) != sizeof block) {
            abort();
        }
    }
    close(file);
}

static void *work(void *nothing) {
    (void)nothing;
    uint16_t before = tidegate_scope_enter("flush");
    put("thread", 4);
    tidegate_scope_leave(before);
    return NULL;
}

int main(void) {
    pthread_t thread;
    uint16_t none = tidegate_scope_enter("flush");
    put("main", 1);
    uint16_t outer = tidegate_scope_enter("compaction_l0");
    put("main", 2);
    pthread_create(&thread, NULL, work, NULL);
    pthread_join(thread, NULL);
    tidegate_scope_leave(outer);
    put("main", 8);
    tidegate_scope_leave(none);
    put("main", 16);
    printf("done\n");
    fflush(stdout);
    getchar();
    return 0;
}
