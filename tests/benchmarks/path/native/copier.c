/* What a copy costs: asks for all records of some shards and hands the answers on as they are, through one buffer.
 *
 *     copier PORT STREAM SHARDS pipe|drop [CA]
 *
 * `pipe` writes them to stdout, `drop` nowhere. Prints CPU and wall seconds, and bytes, to stderr, as JSON. With -DTLS it
 * can speak TLS.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/ssl.h>
static SSL *tls;
#endif

#define PIECE (256 * 1024)

static char buffer[PIECE + 1], next_iterator[256];
static int connection, writes_on;
static long long copied;

static void fail(const char *why) {
    perror(why);
    exit(1);
}

static long get(char *to, size_t size) {
#ifdef TLS
    if (tls) return SSL_read(tls, to, (int)size);
#endif
    return read(connection, to, size);
}

static void put(const char *data, size_t size) {
#ifdef TLS
    if (tls) {
        if (SSL_write(tls, data, (int)size) <= 0) fail("write");
        return;
    }
#endif
    if (write(connection, data, size) != (ssize_t)size) fail("write");
}

static void hand_on(const char *data, size_t size) {
    copied += size;
    while (writes_on && size) {
        ssize_t done = write(1, data, size);
        if (done <= 0) fail("pipe");
        data += done;
        size -= done;
    }
}

/* One call; 0 when there are no more records. */
static int call(void) {
    char body[512], request[1024];
    snprintf(body, sizeof body, "{\"ShardIterator\":\"%s\"}", next_iterator);
    int length = snprintf(request, sizeof request,
                          "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: Kinesis_20131202.GetRecords\r\n"
                          "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    put(request, length);
    size_t have = 0;
    char *end, *at, *wanted;
    /* Until the iterator has come, which stands at the beginning. */
    do {
        long got = get(buffer + have, PIECE - have);
        if (got <= 0) fail("answer");
        have += got;
        buffer[have] = 0;
        end = strstr(buffer, "\r\n\r\n");
        wanted = end ? strstr(end, "\"Records\":[") : NULL;
    } while (!wanted);
    at = strstr(buffer, "Content-Length: ");
    long long left = atoll(at + 16) - (long long)(have - (end + 4 - buffer));
    at = strstr(end, "\"NextShardIterator\":\"") + 21;
    char before[256];
    strcpy(before, next_iterator);
    size_t name = strcspn(at, "\"");
    memcpy(next_iterator, at, name);
    next_iterator[name] = 0;
    hand_on(end + 4, have - (end + 4 - buffer));
    while (left > 0) {
        long got = get(buffer, left < PIECE ? left : PIECE);
        if (got <= 0) fail("body");
        hand_on(buffer, got);
        left -= got;
    }
    return strcmp(before, next_iterator) != 0;
}

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    writes_on = !strcmp(arguments[4], "pipe");
    connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address)) fail("connect");
    int on = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (count > 5) {
#ifdef TLS
        SSL_CTX *context = SSL_CTX_new(TLS_client_method());
        if (!SSL_CTX_load_verify_locations(context, arguments[5], NULL)) return 3;
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
        tls = SSL_new(context);
        SSL_set_fd(tls, connection);
        if (SSL_connect(tls) != 1) return 3;
#else
        return 3;
#endif
    }
    double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int shard = 0; shard < atoi(arguments[3]); shard++) {
        snprintf(next_iterator, sizeof next_iterator, "%s/%d/0", arguments[2], shard);
        while (call());
    }
    fprintf(stderr, "{\"cpu_s\": %.6f, \"wall_s\": %.6f, \"bytes\": %lld}\n",
            seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu, seconds(CLOCK_MONOTONIC) - wall, copied);
    return 0;
}
