/* Writes ten bytes, with whatever descriptors there are, and says whether it was told of the shim. */
#include "check.h"

#ifdef GO
/* The note by which programs built with Go are known. */
__asm__(".section .note.go.buildid,\"a\",@note\n"
        ".long 4, 4, 4\n.asciz \"Go\\0\"\n.long 0\n.previous\n");
#endif

int main(void) {
    int fd = open("file", O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK(fd >= 0 && write(fd, bytes, 10) == 10);
    dprintf(1, "%s\n", getenv("LD_PRELOAD") ? "told" : "not told");
    return 0;
}
