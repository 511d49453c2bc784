/* One asynchronous write of more than the kernel moves by one request, which it refuses. */
#include "check.h"

#include <aio.h>
#include <stdint.h>

int main(void) {
    struct aiocb block = {.aio_fildes = file("file"), .aio_buf = bytes, .aio_nbytes = SIZE_MAX};
    const struct aiocb *blocks[] = {&block};
    CHECK(aio_write(&block) == 0);
    while (aio_error(&block) == EINPROGRESS)
        aio_suspend(blocks, 1, NULL);
    CHECK(aio_error(&block) != 0);
    return 0;
}
