/* A library whose constructor reads and writes before any other constructor has run, and one that
 * runs at the very end. */

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static void leave(const char *name) {
    static const char block[4096];
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, block, sizeof block) != sizeof block) {
        _exit(99);
    }
    close(file);
    FILE *stream = fopen(name, "a");
    if (stream == NULL || fputs("more", stream) < 0 || fclose(stream) != 0) {
        _exit(98);
    }
}

__attribute__((constructor(101))) static void first(void) { leave("early"); }

__attribute__((destructor(101))) static void last(void) { leave("late"); }
