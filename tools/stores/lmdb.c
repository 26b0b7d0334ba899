/* LMDB: blocks by their numbers, as it is by default: a commit is on stable storage, and threads that write take turns. */
#include <lmdb.h>

#include "load.h"

static MDB_env *environment;
static MDB_dbi blocks_by_number;
/* Only the thread whose turn it is has one. */
static MDB_txn *transaction;

static void is_done(int code, const char *what)
{
    check(code == 0, what, mdb_strerror(code));
}

static void put(uint64_t block, unsigned char *data)
{
    MDB_val key = { sizeof block, &block }, value = { BLOCK_BYTES, data };
    is_done(mdb_put(transaction, blocks_by_number, &key, &value, 0), "put");
}

static void store_begin(void)
{
    MDB_txn *mine;
    is_done(mdb_txn_begin(environment, NULL, 0, &mine), "begin");
    transaction = mine;
}

static void store_open(const char *folder, uint64_t blocks)
{
    unsigned char data[BLOCK_BYTES] = { 0 };
    is_done(mdb_env_create(&environment), "environment");
    is_done(mdb_env_set_mapsize(environment, (size_t)4 << 30), "size");
    is_done(mdb_env_open(environment, folder, 0, 0600), folder);
    store_begin();
    is_done(mdb_dbi_open(transaction, NULL, MDB_INTEGERKEY | MDB_CREATE, &blocks_by_number), "open");
    for (uint64_t block = 0; block < blocks; block++)
        put(block, data);
    store_commit();
}

static void store_update(uint64_t block, size_t at, unsigned char value)
{
    unsigned char data[BLOCK_BYTES];
    MDB_val key = { sizeof block, &block }, found;
    is_done(mdb_get(transaction, blocks_by_number, &key, &found), "get");
    memcpy(data, found.mv_data, BLOCK_BYTES);
    memset(data + at, value, MARK_BYTES);
    put(block, data);
}

static void store_commit(void)
{
    is_done(mdb_txn_commit(transaction), "commit");
}
