/* The load of `cargo lab bench transactions` on a store that is not ours: threads that each read three random blocks of 4 KB, change 16 bytes
 * of each and write them back, in one transaction that is durable before the next one begins.
 *
 * A program is this file and one store, which defines the four functions below. Its arguments: a folder for its files, how many blocks, how many threads,
 * how many seconds. It prints how many transactions were committed, in how many seconds, and the processor time of the process in microseconds. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK_BYTES = 4096, BLOCKS_EACH = 3, MARK_BYTES = 16 };

/* Makes the store in a folder that exists, with every block written. */
static void store_open(const char *folder, uint64_t blocks);
/* Begins a transaction that writes. Waits for those of other threads. */
static void store_begin(void);
/* Reads one block of it, changes it by `change`, writes it back. */
static void store_update(uint64_t block, size_t at, unsigned char value);
/* Commits. On return it is on stable storage. */
static void store_commit(void);

static void check(int is_right, const char *what, const char *why)
{
    if (!is_right) {
        fprintf(stderr, "%s: %s\n", what, why);
        exit(1);
    }
}

static double seconds_of(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

struct worker {
    pthread_t thread;
    uint64_t random, blocks, commits;
    double until;
};

static uint64_t next_random(struct worker *worker)
{
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    return worker->random;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    while (seconds_of(CLOCK_MONOTONIC) < worker->until) {
        store_begin();
        for (int each = 0; each < BLOCKS_EACH; each++) {
            uint64_t block = next_random(worker) % worker->blocks;
            size_t at = next_random(worker) % (BLOCK_BYTES / MARK_BYTES) * MARK_BYTES;
            store_update(block, at, (unsigned char)worker->random);
        }
        store_commit();
        worker->commits++;
    }
    return NULL;
}

int main(int count, char **arguments)
{
    check(count == 5, "stores", "needs a folder, blocks, threads, seconds");
    uint64_t blocks = strtoull(arguments[2], NULL, 10);
    size_t threads = strtoull(arguments[3], NULL, 10);
    store_open(arguments[1], blocks);
    struct worker *workers = calloc(threads, sizeof *workers);
    check(workers != NULL && blocks > 0, "stores", "no memory, or no blocks");
    double began = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t at = 0; at < threads; at++) {
        workers[at] = (struct worker){ .random = 0x9e3779b97f4a7c15u * (at + 1),
                                       .blocks = blocks,
                                       .until = began + strtod(arguments[4], NULL) };
        check(pthread_create(&workers[at].thread, NULL, work, &workers[at]) == 0, "stores", "no thread");
    }
    uint64_t commits = 0;
    for (size_t at = 0; at < threads; at++) {
        pthread_join(workers[at].thread, NULL);
        commits += workers[at].commits;
    }
    printf("%llu %.6f %.0f\n", (unsigned long long)commits, seconds_of(CLOCK_MONOTONIC) - began,
           (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu) * 1e6);
    return 0;
}
