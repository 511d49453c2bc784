/* Does a little I/O, so that it can be seen whether it ran: writes a file of this name. */

#include <fcntl.h>
#include <unistd.h>

int main(int count, char **arguments) {
    int file = count < 2 ? -1 : open(arguments[1], O_CREAT | O_WRONLY, 0666);
    return file < 0 || write(file, "ran\n", 4) != 4;
}
