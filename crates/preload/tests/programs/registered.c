/* Requests in a ring on files that are registered with it. Another file is the first argument. */
#include "check.h"

#include <liburing.h>

static struct io_uring ring;

/* Reads from or writes to a registered file, and waits for the end. */
static void request(int index, int is_write, unsigned length) {
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    if (is_write)
        io_uring_prep_write(entry, index, bytes, length, 0);
    else
        io_uring_prep_read(entry, index, bytes, length, 0);
    entry->flags |= IOSQE_FIXED_FILE;
    CHECK(io_uring_submit(&ring) == 1);
    struct io_uring_cqe *done;
    CHECK(io_uring_wait_cqe(&ring, &done) == 0);
    CHECK(done->res == (int)length);
    io_uring_cqe_seen(&ring, done);
}

int main(int count, char **arguments) {
    CHECK(io_uring_queue_init(8, &ring, 0) == 0);
    int inside = file("file"), outside = open(arguments[1], O_RDONLY);
    CHECK(outside >= 0);
    int files[] = {inside, outside, -1};
    CHECK(io_uring_register_files(&ring, files, 3) == 0);
    /* The ring keeps the files open. What the numbers stand for now is something else. */
    close(inside);
    close(outside);
    CHECK(open("/dev/null", O_RDWR) == inside);
    for (int round = 0; round < 10; round++)
        request(0, 1, 100);
    request(0, 0, 50);
    request(1, 0, 4000);
    /* Another file in its place, and one in the free place. */
    int moved[] = {open(arguments[1], O_RDONLY), open("file", O_RDWR)};
    CHECK(io_uring_register_files_update(&ring, 1, moved + 1, 1) == 1);
    CHECK(io_uring_register_files_update(&ring, 0, moved, 1) == 1);
    request(0, 0, 4000);
    request(1, 0, 60);
    /* The kernel opens a file for the ring alone: nobody knows its path. */
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    io_uring_prep_openat_direct(entry, AT_FDCWD, "file", O_RDWR, 0, 0);
    CHECK(io_uring_submit(&ring) == 1);
    struct io_uring_cqe *done;
    CHECK(io_uring_wait_cqe(&ring, &done) == 0 && done->res == 0);
    io_uring_cqe_seen(&ring, done);
    request(0, 1, 7);
    CHECK(io_uring_unregister_files(&ring) == 0);
    io_uring_queue_exit(&ring);
    /* 10 writes of 1000 bytes and one of 7; 2 reads of 110. */
    return 0;
}
