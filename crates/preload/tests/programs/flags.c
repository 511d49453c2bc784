/* Calls with flags, with arguments that the kernel refuses, and past the page cache. */
#include "check.h"

#include <sys/sendfile.h>
#include <sys/syscall.h>

#define NO_SUCH_FLAG 0x40000000

int main(void) {
    int fd = file("file"), other = file("other"), ends[2];
    struct iovec two[2] = {{bytes, 100}, {bytes + 100, 100}}, many[1025] = {{0}};
    CHECK(pipe(ends) == 0);
    CHECK(pwrite(fd, bytes, 8192, 0) == 8192); /* write 1: 8192 */

    /* What is in the cache is there without waiting; an offset of -1 is where the file is. */
    CHECK(preadv2(fd, two, 2, 0, RWF_NOWAIT) == 200); /* read 1: 200 */
    CHECK(preadv2(fd, two, 2, -1, 0) == 200);         /* read 2: 400 */
    CHECK(lseek(fd, 0, SEEK_CUR) == 200);
    CHECK(pwritev2(fd, two, 2, 0, RWF_APPEND | RWF_DSYNC) == 200); /* write 2: 8392 */
    CHECK(lseek(fd, 0, SEEK_END) == 8392);

    /* Each passes a gate, and gives back what it took. */
    CHECK(preadv2(fd, two, 2, 0, NO_SUCH_FLAG) == -1 && errno == EOPNOTSUPP);  /* read 3 */
    CHECK(pwritev2(fd, two, 2, 0, NO_SUCH_FLAG) == -1 && errno == EOPNOTSUPP); /* write 3 */
    CHECK(readv(fd, two, -1) == -1 && errno == EINVAL);                        /* read 4 */
    CHECK(readv(fd, many, 1025) == -1 && errno == EINVAL);                     /* read 5 */
    CHECK(readv(fd, NULL, 0) == 0);                                            /* read 6 */
    CHECK(pread(fd, bytes, 10, -5) == -1 && errno == EINVAL);                  /* read 7 */
    CHECK(pread(fd, bytes, (size_t)-1, 0) == -1);                              /* read 8 */
    CHECK(pread(fd, (void *)8, 10, 0) == -1 && errno == EFAULT);               /* read 9 */

    /* Past the cache. */
    int direct = open("direct", O_RDWR | O_CREAT | O_DIRECT, 0600);
    void *block;
    CHECK(posix_memalign(&block, 4096, 4096) == 0);
    if (direct >= 0) {
        CHECK(write(direct, block, 4096) == 4096);           /* write 4: 12488 */
        CHECK(pread(direct, block, 4096, 0) == 4096);        /* read 10: 4496 */
        pread(direct, (char *)block + 1, 100, 1);            /* read 11, which may be refused */
    }

    /* Between files, each side once; between a file and a pipe only the file. */
    off_t offset = 0;
    CHECK(sendfile(other, fd, &offset, 300) == 300 && offset == 300);
    CHECK(syscall(SYS_sendfile, other, fd, &offset, 100L) == 100 && offset == 400);
    loff_t from = 0, to = 4096;
    CHECK(copy_file_range(fd, &from, fd, &to, 1000, 0) == 1000);
    CHECK(copy_file_range(fd, &from, fd, &from, 1000, 0) == -1);
    from = 0;
    CHECK(splice(fd, &from, ends[1], NULL, 50, 0) == 50);
    CHECK(splice(ends[0], NULL, other, NULL, 50, 0) == 50);
    CHECK(sendfile(other, -1, NULL, 10) == -1 && errno == EBADF);
    return 0;
}
