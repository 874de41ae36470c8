/*
 * A stand-in for NCCL: notes its calls, joins ranks that are threads, and fails or waits where it is told to. It moves
 * no data.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char bytes[128]; } Id;
typedef struct { char id[16]; int rank, size, twin; } Comm;
typedef struct { char id[16]; int there; } World;

int warpool_stands_in = 1;

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static char notes[1 << 16];
static World worlds[256];
static int ids;
static volatile int async_error, holding, apart;
static char failing[64];
static int failing_code;
static __thread int depth;

static void note(const char *line) {
    pthread_mutex_lock(&turn);
    if (strlen(notes) + strlen(line) + 2 < sizeof(notes)) { strcat(notes, line); strcat(notes, "\n"); }
    pthread_mutex_unlock(&turn);
}

/* The code that the call is to give: a failing one is named alone, or with all of its note. */
static int called(const char *call, const char *rest) {
    char line[256];
    snprintf(line, sizeof(line), "%s%s", call, rest);
    note(line);
    return strcmp(call, failing) == 0 || strcmp(line, failing) == 0 ? failing_code : 0;
}

/* Ranks that have come to a communicator. */
static int there(Comm *comm) {
    int found = 0;
    pthread_mutex_lock(&turn);
    for (int i = 0; i < 256; i++) if (strcmp(worlds[i].id, comm->id) == 0) found = worlds[i].there;
    pthread_mutex_unlock(&turn);
    return found;
}

/* Does not come back while a test holds calls up, as where a rank does not come. */
static void held(void) {
    if (holding) note("held up");
    while (holding) usleep(1000);
}

/* ---- what tests ask for ---- */
void stand_in_reset(void) { pthread_mutex_lock(&turn); notes[0] = failing[0] = 0; async_error = holding = apart = 0; pthread_mutex_unlock(&turn); }
const char *stand_in_notes(void) { return notes; }
void stand_in_fail(const char *call, int code) { strncpy(failing, call, sizeof(failing) - 1); failing_code = code; }
void stand_in_hold(int on) { holding = on; }
/* So many ranks, from 0, take no part in a second communicator. */
void stand_in_apart(int ranks) { apart = ranks; }
void stand_in_async_error(int code) { async_error = code; }

/* ---- NCCL's own ---- */
int ncclGetVersion(int *version) { *version = 22707; return 0; }
const char *ncclGetErrorString(int code) { return code == 2 ? "unhandled system error" : code == 6 ? "remote process exited" : "some error"; }
const char *ncclGetLastError(void *comm) { (void)comm; return "the stand-in says so"; }

int ncclGetUniqueId(Id *id) {
    pthread_mutex_lock(&turn);
    memset(id, 0, sizeof(*id));
    snprintf(id->bytes, 16, "id %d", ids);
    strcpy(worlds[ids++ % 256].id, id->bytes);
    pthread_mutex_unlock(&turn);
    return called("ncclGetUniqueId", "");
}

int ncclCommInitRankConfig(void **comm, int size, Id id, int rank, const void *config) {
    const struct { size_t size; unsigned magic, version; int blocking, cga, min_ctas, max_ctas; } *c = config;
    char rest[64];
    snprintf(rest, sizeof(rest), " %d/%d %s", rank, size, c->magic == 0xcafebeef && c->size == 40 && c->blocking == 1 && c->max_ctas == 32 ? "ok" : "bad config");
    Comm *made = calloc(1, sizeof(*made));
    memcpy(made->id, id.bytes, sizeof(made->id));
    made->rank = rank;
    made->size = size;
    *comm = made;
    int code = called("ncclCommInitRankConfig", rest);
    if (code != 0) return code;
    pthread_mutex_lock(&turn);
    for (int i = 0; i < 256; i++) if (strcmp(worlds[i].id, made->id) == 0) worlds[i].there++;
    pthread_mutex_unlock(&turn);
    held();
    while (there(made) < size) usleep(1000);
    return 0;
}

/* Of the ranks of the communicator, as it was made; one that fails leaves something to give back, as NCCL may. */
int ncclCommSplit(void *comm, int color, int key, void **made, const void *config) {
    const Comm *of = comm;
    char rest[64];
    snprintf(rest, sizeof(rest), " %d of %d%s", key, of->size, color == 0 && config == NULL ? "" : " bad");
    held();
    *made = NULL;
    if (of->rank >= apart) {
        Comm *twin = calloc(1, sizeof(*of));
        memcpy(twin, of, sizeof(*of));
        twin->size = of->size - apart;
        twin->twin = 1;
        *made = twin;
    }
    return called("ncclCommSplit", rest);
}

static const char *which(void *comm) { return ((Comm *)comm)->twin ? " of the twin" : ""; }
static int end(const char *call, void *comm) { int code = called(call, which(comm)); free(comm); return code; }

int ncclCommGetAsyncError(void *comm, int *error) {
    (void)comm;
    *error = async_error;
    return called("ncclCommGetAsyncError", "");
}

int ncclCommCuDevice(void *comm, int *device) { (void)comm; *device = 0; return 0; }
int ncclCommCount(void *comm, int *ranks) { *ranks = ((Comm *)comm)->size; return 0; }
int ncclCommFinalize(void *comm) { const char *rest = which(comm); held(); return called("ncclCommFinalize", rest); }
int ncclCommDestroy(void *comm) { return end("ncclCommDestroy", comm); }
int ncclCommAbort(void *comm) { return end("ncclCommAbort", comm); }
int ncclGroupStart(void) { depth++; return called("ncclGroupStart", ""); }
int ncclGroupEnd(void) { depth--; return called("ncclGroupEnd", depth == 0 ? "" : " of nothing"); }

static int collective(const char *call, size_t count, int kind, int other, void *comm) {
    char rest[96];
    snprintf(rest, sizeof(rest), " %zu of %d, %d, rank %d%s%s", count, kind, other, ((Comm *)comm)->rank, depth == 0 ? "" : " of a group", which(comm));
    held();
    return called(call, rest);
}

int ncclAllReduce(const void *src, void *dst, size_t count, int kind, int op, void *comm, void *stream) { (void)src, (void)dst, (void)stream; return collective("ncclAllReduce", count, kind, op, comm); }
int ncclReduceScatter(const void *src, void *dst, size_t count, int kind, int op, void *comm, void *stream) { (void)src, (void)dst, (void)stream; return collective("ncclReduceScatter", count, kind, op, comm); }
int ncclAllGather(const void *src, void *dst, size_t count, int kind, void *comm, void *stream) { (void)src, (void)dst, (void)stream; return collective("ncclAllGather", count, kind, -1, comm); }
int ncclBroadcast(const void *src, void *dst, size_t count, int kind, int root, void *comm, void *stream) { (void)src, (void)dst, (void)stream; return collective("ncclBroadcast", count, kind, root, comm); }
int ncclSend(const void *src, size_t count, int kind, int peer, void *comm, void *stream) { (void)src, (void)stream; return collective("ncclSend", count, kind, peer, comm); }
int ncclRecv(void *dst, size_t count, int kind, int peer, void *comm, void *stream) { (void)dst, (void)stream; return collective("ncclRecv", count, kind, peer, comm); }
