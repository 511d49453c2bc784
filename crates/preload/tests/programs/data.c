/* Every way to move bytes between memory and a descriptor, each once, with sizes that tell them
 * apart when they are added up. */
#include "check.h"

#include <sys/mman.h>
#include <sys/syscall.h>

/* glibc's checked variants, which -D_FORTIFY_SOURCE puts in place of the plain ones. */
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);

int main(void) {
    int fd = file("data");
    struct iovec three[] = {{bytes, 100}, {bytes, 200}, {bytes, 300}};

    CHECK(write(fd, bytes, 1) == 1);
    CHECK(pwrite(fd, bytes, 2, 0) == 2);
    CHECK(pwrite64(fd, bytes, 4, 0) == 4);
    CHECK(writev(fd, three, 3) == 600);
    CHECK(pwritev(fd, three, 3, 0) == 600);
    CHECK(pwritev64(fd, three, 3, 0) == 600);
    CHECK(pwritev2(fd, three, 3, 0, 0) == 600);
    CHECK(pwritev64v2(fd, three, 3, 0, 0) == 600);
    CHECK(syscall(SYS_write, fd, bytes, 8) == 8);
    CHECK(syscall(SYS_pwrite64, fd, bytes, 16, 0) == 16);
    CHECK(syscall(SYS_writev, fd, three, 3) == 600);
    /* 11 writes of 3631 bytes. */

    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    CHECK(read(fd, bytes, 1) == 1);
    CHECK(__read_chk(fd, bytes, 2, sizeof bytes) == 2);
    CHECK(pread(fd, bytes, 4, 0) == 4);
    CHECK(pread64(fd, bytes, 8, 0) == 8);
    CHECK(__pread_chk(fd, bytes, 16, 0, sizeof bytes) == 16);
    CHECK(__pread64_chk(fd, bytes, 32, 0, sizeof bytes) == 32);
    CHECK(readv(fd, three, 3) == 600);
    CHECK(preadv(fd, three, 3, 0) == 600);
    CHECK(preadv64(fd, three, 3, 0) == 600);
    CHECK(preadv2(fd, three, 3, 0, 0) == 600);
    CHECK(preadv64v2(fd, three, 3, 0, 0) == 600);
    CHECK(syscall(SYS_read, fd, bytes, 64) == 64);
    CHECK(syscall(SYS_pread64, fd, bytes, 128, 0) == 128);
    CHECK(syscall(SYS_readv, fd, three, 1) == 100);
    /* A short one: the file has 1209 bytes. */
    CHECK(pread(fd, bytes, 4096, 1000) == 209);
    CHECK(pread(fd, bytes, 4096, 5000) == 0);
    /* 16 reads of 3564 bytes. */

    CHECK(fsync(fd) == 0);
    CHECK(fdatasync(fd) == 0);
    CHECK(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE) == 0);
    CHECK(syncfs(fd) == 0);
    CHECK(syscall(SYS_fsync, fd) == 0);

    CHECK(ftruncate(fd, 4096) == 0);
    CHECK(truncate("data", 8192) == 0);
    CHECK(posix_fallocate(fd, 0, 8192) == 0);
    CHECK(fallocate(fd, 0, 0, 8192) == 0);

    char *map = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && map[0] == 0);
    CHECK(msync(map, 8192, MS_ASYNC) == 0);
    /* Memory has no file; neither does shared memory have one on storage. */
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    int memory = memfd_create("memory", 0);
    CHECK(memory >= 0 && ftruncate(memory, 4096) == 0);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, memory, 0) != MAP_FAILED);
    CHECK(write(memory, bytes, 77) == 77);
    return 0;
}
