/* Streams: what reaches the file counts, not what is said to the stream. */
#include "check.h"

int main(void) {
    /* 100,000 bytes in lines of ten: 24 blocks of 4096, and the rest when the stream is closed. */
    FILE *stream = fopen("lines", "w");
    CHECK(stream != NULL);
    for (int line = 0; line < 10000; line++)
        CHECK(fputs("123456789\n", stream) >= 0);
    CHECK(fclose(stream) == 0);

    /* One large piece goes through whole, and what is left of a block when it is flushed. */
    stream = fopen("blocks", "w");
    CHECK(fwrite(bytes, 1000, 50, stream) == 50);
    CHECK(fputc('x', stream) == 'x');
    CHECK(fflush(stream) == 0);
    CHECK(fflush(stream) == 0);
    CHECK(fprintf(stream, "%d", 12345) == 5);
    CHECK(fclose(stream) == 0);

    stream = fopen("lines", "r");
    char line[64];
    int lines = 0;
    while (fgets(line, sizeof line, stream))
        lines++;
    CHECK(lines == 10000 && feof(stream));
    CHECK(fclose(stream) == 0);

    stream = fopen("lines", "r");
    char *text = NULL;
    size_t room = 0;
    lines = 0;
    while (getline(&text, &room, stream) == 10)
        lines++;
    CHECK(lines == 10000);
    CHECK(fclose(stream) == 0);

    stream = fopen("lines", "r");
    int letters = 0;
    while (getc_unlocked(stream) != EOF)
        letters++;
    CHECK(letters == 100000);
    CHECK(fclose(stream) == 0);

    /* An item that the file ends in is read in part, and not counted as an item. */
    stream = fopen("lines", "r");
    CHECK(fread(bytes, 60000, 2, stream) == 1);
    CHECK(memcmp(bytes + 99990, "123456789\n", 10) == 0);
    CHECK(fclose(stream) == 0);

    /* A move within the buffer reads nothing, one beyond it reads a block. */
    stream = fopen("lines", "r");
    CHECK(fgetc(stream) == '1');
    CHECK(fseek(stream, 100, SEEK_SET) == 0 && fgetc(stream) == '1');
    CHECK(fseek(stream, 50010, SEEK_SET) == 0 && fgetc(stream) == '1');
    CHECK(fclose(stream) == 0);
    return 0;
}
