/* The cheapest child: drains its stdin with large reads, looks at the first and last bytes of a line, and answers.
 *
 * Notes in the file BENCH_NOTES, for all children together: "shard event time figure"; for records the figure is how
 * many of the shard's records have come. Asks for a checkpoint every BENCH_CHECKPOINT_EVERY batches. `sink drain` only
 * reads. The same in Python: ../sink.py.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PIECE (256 * 1024)
#define HEAD 512
#define TAIL 1024
#define INDEX_DIGITS 19

static char piece[PIECE];
static char head[HEAD + 1], tail[TAIL + 1], shard[128] = "none", sequence[128];
static size_t head_length, tail_length;
static int notes = -1, every, batches;

static void keep(const char *data, size_t length) {
    size_t room = HEAD - head_length, part = length < room ? length : room;
    memcpy(head + head_length, data, part);
    head_length += part;
    if (length >= TAIL) {
        memcpy(tail, data + length - TAIL, TAIL);
        tail_length = TAIL;
        return;
    }
    if (tail_length + length > TAIL) {
        size_t left = TAIL - length;
        memmove(tail, tail + tail_length - left, left);
        tail_length = left;
    }
    memcpy(tail + tail_length, data, length);
    tail_length += length;
}

/* The text value of a field, found from `text` on; empty if there is none. */
static void value_of(const char *text, const char *field, char *value, size_t size) {
    value[0] = 0;
    const char *at = strstr(text, field);
    if (!at) return;
    at = strchr(at + strlen(field), '"');
    if (!at) return;
    size_t length = strcspn(++at, "\"");
    if (length >= size) length = size - 1;
    memcpy(value, at, length);
    value[length] = 0;
}

static void note(const char *event, long figure) {
    char line[256];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int length = snprintf(line, sizeof line, "%s %s %ld.%06ld %ld\n", shard, event, (long)now.tv_sec,
                          now.tv_nsec / 1000, figure);
    if (notes >= 0 && write(notes, line, length) < 0) exit(1);
}

static void answer(const char *text) {
    if (write(1, text, strlen(text)) < 0) exit(0);
}

static void answer_status(const char *name) {
    char line[128];
    snprintf(line, sizeof line, "{\"action\":\"status\",\"responseFor\":\"%s\"}\n", name);
    answer(line);
}

static void records(void) {
    const char *last = NULL, *at = tail;
    while ((at = strstr(at, "\"sequenceNumber\""))) last = at++;
    if (last) {
        value_of(last, "\"sequenceNumber\":", sequence, sizeof sequence);
        size_t length = strlen(sequence);
        note("records", atol(sequence + (length > INDEX_DIGITS ? length - INDEX_DIGITS : 0)) + 1);
    }
    if (every && sequence[0] && ++batches % every == 0) {
        char line[256];
        snprintf(line, sizeof line,
                 "{\"action\":\"checkpoint\",\"sequenceNumber\":\"%s\",\"subSequenceNumber\":0}\n", sequence);
        answer(line);
        return;
    }
    answer_status("processRecords");
}

static void line_is_whole(void) {
    char name[64];
    head[head_length] = tail[tail_length] = 0;
    value_of(head, "\"action\":", name, sizeof name);
    if (!strcmp(name, "initialize")) {
        value_of(head, "\"shardId\":", shard, sizeof shard);
        note("initialize", 0);
        answer_status(name);
    } else if (!strcmp(name, "processRecords")) {
        records();
    } else if (!strcmp(name, "checkpoint")) {
        answer_status("processRecords");
    } else {
        answer_status(name);
    }
    head_length = tail_length = 0;
}

int main(int count, char **arguments) {
    int drains = count > 1 && !strcmp(arguments[1], "drain");
    const char *file = getenv("BENCH_NOTES"), *often = getenv("BENCH_CHECKPOINT_EVERY");
    if (file) notes = open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (often) every = atoi(often);
    ssize_t length;
    while ((length = read(0, piece, PIECE)) > 0) {
        if (drains) continue;
        keep(piece, length);
        if (piece[length - 1] == '\n') line_is_whole();
    }
    return 0;
}
