/* Requests that are handed over: libaio, liburing, POSIX asynchronous I/O. */
#include "check.h"

#include <aio.h>
#include <libaio.h>
#include <liburing.h>

static void through_libaio(int fd) {
    io_context_t context = 0;
    CHECK(io_setup(8, &context) == 0);
    struct iovec two[] = {{bytes, 100}, {bytes, 200}};
    struct iocb requests[4], *list[4];
    for (int index = 0; index < 4; index++)
        list[index] = &requests[index];
    io_prep_pwrite(&requests[0], fd, bytes, 1000, 0);
    io_prep_pwritev(&requests[1], fd, two, 2, 1000);
    io_prep_pread(&requests[2], fd, bytes, 500, 0);
    io_prep_preadv(&requests[3], fd, two, 2, 0);
    CHECK(io_submit(context, 4, list) == 4);
    struct io_event events[4];
    CHECK(io_getevents(context, 4, 4, events, NULL) == 4);
    CHECK(io_submit(0, 1, list) == -EINVAL);
    CHECK(io_destroy(context) == 0);
    /* 2 writes of 1300 bytes, 2 reads of 800. */
}

static void through_liburing(int fd) {
    struct io_uring ring;
    CHECK(io_uring_queue_init(8, &ring, 0) == 0);
    struct io_uring_cqe *done;
    for (int round = 0; round < 3; round++) {
        struct io_uring_sqe *entries[3];
        for (int index = 0; index < 3; index++)
            entries[index] = io_uring_get_sqe(&ring);
        io_uring_prep_write(entries[0], fd, bytes, 2000, 0);
        io_uring_prep_read(entries[1], fd, bytes, 300, 0);
        io_uring_prep_fsync(entries[2], fd, 0);
        for (int index = 0; index < 3; index++)
            io_uring_sqe_set_data64(entries[index], index);
        CHECK((round ? io_uring_submit(&ring) : io_uring_submit_and_wait(&ring, 3)) == 3);
        for (int index = 0; index < 3; index++) {
            CHECK(io_uring_wait_cqe(&ring, &done) == 0 && done->res >= 0);
            io_uring_cqe_seen(&ring, done);
        }
    }
    io_uring_queue_exit(&ring);
    /* 3 writes of 6000 bytes, 3 reads of 900, 3 syncs. */
}

static void through_posix(int fd) {
    struct aiocb write = {.aio_fildes = fd, .aio_buf = bytes, .aio_nbytes = 40};
    const struct aiocb *list[] = {&write};
    CHECK(aio_write(&write) == 0);
    while (aio_error(&write) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    CHECK(aio_return(&write) == 40);
    write.aio_lio_opcode = LIO_READ;
    struct aiocb *one[] = {&write, NULL};
    CHECK(lio_listio(LIO_WAIT, one, 2, NULL) == 0);
    /* A write and a read of 40 bytes. */
}

int main(void) {
    int fd = file("file");
    through_libaio(fd);
    through_liburing(fd);
    through_posix(fd);
    return 0;
}
