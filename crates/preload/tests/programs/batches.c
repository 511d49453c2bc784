/* One call of libaio with more requests than the kernel takes, again and again until all are done. */
#include "check.h"

#include <libaio.h>

enum { ALL = 300, SIZE = 10 };

int main(void) {
    int fd = file("file");
    io_context_t context = 0;
    CHECK(io_setup(2, &context) == 0);
    static struct iocb requests[ALL], *list[ALL];
    for (int index = 0; index < ALL; index++) {
        list[index] = &requests[index];
        io_prep_pwrite(&requests[index], fd, bytes, SIZE, index * SIZE);
    }
    struct io_event events[ALL];
    for (int done = 0, submitted = 0; done < ALL;) {
        int taken = submitted < ALL ? io_submit(context, ALL - submitted, list + submitted) : 0;
        CHECK(taken >= 0 || taken == -EAGAIN);
        submitted += taken > 0 ? taken : 0;
        int ended = io_getevents(context, submitted > done, ALL, events, NULL);
        CHECK(ended >= 0);
        for (int index = 0; index < ended; index++)
            CHECK(events[index].res == SIZE);
        done += ended;
    }
    CHECK(io_destroy(context) == 0);
    return 0;
}
