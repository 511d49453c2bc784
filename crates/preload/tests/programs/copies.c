/* Copies inside the kernel. */
#include "check.h"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

/* As every caller of these functions has to: until all is copied. */
static void all(int source, int target, size_t length, int how) {
    off64_t from = 0, to = 0;
    while (length > 0) {
        ssize_t copied = how == 0   ? copy_file_range(source, &from, target, &to, length, 0)
                         : how == 1 ? sendfile(target, source, &from, length)
                                    : syscall(SYS_sendfile, target, source, &from, length);
        CHECK(copied > 0);
        length -= copied;
    }
}

int main(void) {
    int source = file("source"), target = file("target");
    /* 3 MiB and a bit. */
    for (int piece = 0; piece < 3; piece++)
        CHECK(write(source, bytes, sizeof bytes) == sizeof bytes);
    CHECK(write(source, bytes, 100) == 100);
    size_t length = 3 * sizeof bytes + 100;

    all(source, target, length, 0); /* read and write */
    all(source, target, length, 1); /* read and write */
    all(source, target, length, 2); /* read and write */
    CHECK(copy_file_range(source, &(off64_t){length}, target, NULL, 1, 0) == 0);

    /* To a pipe it is a read, from a pipe a write. */
    int ends[2];
    CHECK(pipe(ends) == 0);
    CHECK(splice(source, &(off64_t){0}, ends[1], NULL, 5000, 0) == 5000);
    CHECK(splice(ends[0], NULL, target, &(off64_t){0}, 5000, 0) == 5000);
    CHECK(sendfile(ends[1], source, &(off_t){0}, 300) == 300);

    /* A clone moves nothing; most file systems refuse. */
    ioctl(target, FICLONE, source);
    return 0;
}
