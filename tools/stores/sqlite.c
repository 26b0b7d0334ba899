/* SQLite: a table of blocks, the write-ahead log, synchronous=FULL. One connection, which threads take in turn: SQLite has one writer at a time
 * whatever the number of connections, and so nobody sleeps while the database is locked and what was read stays in its cache. */
#include <sqlite3.h>

#include "load.h"

static sqlite3 *database;
static sqlite3_stmt *begin, *read_block, *write_block, *commit;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void is(int code, int expected, const char *what)
{
    check(code == expected, what, database ? sqlite3_errmsg(database) : sqlite3_errstr(code));
}

static sqlite3_stmt *prepared(const char *text)
{
    sqlite3_stmt *statement;
    is(sqlite3_prepare_v3(database, text, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL), SQLITE_OK, text);
    return statement;
}

static void run(sqlite3_stmt *statement)
{
    is(sqlite3_step(statement), SQLITE_DONE, sqlite3_sql(statement));
    is(sqlite3_reset(statement), SQLITE_OK, sqlite3_sql(statement));
}

static void put(uint64_t block, const unsigned char *data)
{
    is(sqlite3_bind_int64(write_block, 1, (sqlite3_int64)block), SQLITE_OK, "bind");
    is(sqlite3_bind_blob(write_block, 2, data, BLOCK_BYTES, SQLITE_STATIC), SQLITE_OK, "bind");
    run(write_block);
}

static void store_open(const char *folder, uint64_t blocks)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/blocks.sqlite", folder);
    is(sqlite3_open_v2(path, &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL), SQLITE_OK, path);
    /* A page has room for a row with its block, and the cache for all rows. */
    is(sqlite3_exec(database,
                    "PRAGMA page_size=8192; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-1048576;"
                    "CREATE TABLE blocks(number INTEGER PRIMARY KEY, data BLOB NOT NULL)",
                    NULL, NULL, NULL),
       SQLITE_OK, "create");
    begin = prepared("BEGIN IMMEDIATE");
    commit = prepared("COMMIT");
    read_block = prepared("SELECT data FROM blocks WHERE number = ?1");
    write_block = prepared("REPLACE INTO blocks(number, data) VALUES (?1, ?2)");
    unsigned char data[BLOCK_BYTES] = { 0 };
    run(begin);
    for (uint64_t block = 0; block < blocks; block++)
        put(block, data);
    run(commit);
}

static void store_begin(void)
{
    pthread_mutex_lock(&turn);
    run(begin);
}

static void store_update(uint64_t block, size_t at, unsigned char value)
{
    unsigned char data[BLOCK_BYTES];
    is(sqlite3_bind_int64(read_block, 1, (sqlite3_int64)block), SQLITE_OK, "bind");
    is(sqlite3_step(read_block), SQLITE_ROW, "read");
    memcpy(data, sqlite3_column_blob(read_block, 0), BLOCK_BYTES);
    is(sqlite3_reset(read_block), SQLITE_OK, "read");
    memset(data + at, value, MARK_BYTES);
    put(block, data);
}

static void store_commit(void)
{
    run(commit);
    pthread_mutex_unlock(&turn);
}
