/* A thread for each name, which writes a megabyte under it. Only then, by the second name, may it
 * be told that a thread was renamed.
 *
 *     threads FILE NAME... */

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char *path;

static void *work(void *name) {
    static const char block[65536];
    char own[256];
    /* Half by the one call, half by the other. */
    if (strlen(name) % 2 == 0) {
        pthread_setname_np(pthread_self(), name);
    } else {
        prctl(PR_SET_NAME, name);
    }
    snprintf(own, sizeof own, "%s-%s", path, (const char *)name);
    int file = open(own, O_WRONLY | O_CREAT, 0644);
    for (int round = 0; round < 16; round++) {
        if (write(file, block, sizeof block) != sizeof block) {
            abort();
        }
    }
    close(file);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[16];
    path = arguments[1];
    for (int at = 2; at < count; at++) {
        pthread_create(&threads[at], NULL, work, arguments[at]);
    }
    for (int at = 2; at < count; at++) {
        pthread_join(threads[at], NULL);
    }
    printf("done\n");
    fflush(stdout);
    getchar();
    return 0;
}
