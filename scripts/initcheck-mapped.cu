// What initcheck makes of memory mapped with cuMemMap: two ways in which it takes bytes for unwritten
// that were written. Nothing of the crate is in it, and no byte is wrong in any of them.
//
//   nvcc -std=c++17 -arch=sm_80 -o initcheck-mapped scripts/initcheck-mapped.cu -lcuda
//   compute-sanitizer --tool initcheck ./initcheck-mapped threads            reports
//   compute-sanitizer --tool initcheck ./initcheck-mapped threads in-turn    none
//   compute-sanitizer --tool initcheck ./initcheck-mapped threads plain      none: cudaMalloc
//   compute-sanitizer --tool initcheck ./initcheck-mapped streams            reports
//   CUDA_LAUNCH_BLOCKING=1 compute-sanitizer --tool initcheck ./initcheck-mapped streams    none
//
// threads: eight threads fill 4 KiB on one stream and copy it on another that waits, fifty times, each
// time to another place; in turn, a thread at a time. streams: memory is mapped, a kernel on one stream
// writes a part of it and one on another stream, meanwhile, another part, which is then read.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#define CHECK(call)                                                        \
    do {                                                                   \
        const int code = (int)(call);                                      \
        if (code != 0) {                                                   \
            std::printf("%s: %d, line %d\n", #call, code, __LINE__);       \
            std::exit(1);                                                  \
        }                                                                  \
    } while (0)

constexpr size_t THREADS = 8, ROUNDS = 50, BYTES = 4096, EACH = (ROUNDS + 1) * BYTES, ALL = 2 << 20;
static_assert(THREADS * EACH <= ALL, "a place for each thread");

__global__ void put(unsigned *to, size_t words, unsigned value) {
    const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (size_t i = first; i < words; i += (size_t)gridDim.x * blockDim.x) to[i] = value;
}

__global__ void look(const unsigned *from, size_t words, unsigned value, unsigned *wrong) {
    for (size_t i = threadIdx.x; i < words; i += blockDim.x)
        if (from[i] != value) atomicAdd(wrong, 1);
}

static CUdeviceptr mapped() {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    CHECK(cuMemCreate(&handle, ALL, &prop, 0));
    CHECK(cuMemAddressReserve(&at, ALL, 0, 0, 0));
    CHECK(cuMemMap(at, ALL, 0, handle, 0));
    CHECK(cuMemSetAccess(at, ALL, &access, 1));
    return at;
}

static size_t wrong_bytes(CUdeviceptr at) {
    CUstream fills, copies;
    CUevent filled, copied;
    CHECK(cuStreamCreate(&fills, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&filled, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));
    for (size_t round = 1; round <= ROUNDS; ++round) {
        CHECK(cuMemsetD8Async(at, (unsigned char)round, BYTES, fills));
        CHECK(cuEventRecord(filled, fills));
        CHECK(cuStreamWaitEvent(copies, filled, 0));
        CHECK(cuMemcpyDtoDAsync(at + round * BYTES, at, BYTES, copies));
        CHECK(cuEventRecord(copied, copies));
        CHECK(cuStreamWaitEvent(fills, copied, 0));
    }
    std::vector<unsigned char> read(ROUNDS * BYTES);
    CHECK(cuMemcpyDtoHAsync(read.data(), at + BYTES, read.size(), fills));
    CHECK(cuStreamSynchronize(fills));
    size_t wrong = 0;
    for (size_t i = 0; i < read.size(); ++i) wrong += read[i] != i / BYTES + 1;
    return wrong;
}

static size_t of_threads(CUdeviceptr base, bool in_turn) {
    std::mutex turn;
    std::vector<std::thread> threads;
    size_t wrong[THREADS] = {}, sum = 0;
    for (size_t thread = 0; thread < THREADS; ++thread) {
        threads.emplace_back([&, thread] {
            CHECK(cudaSetDevice(0));
            std::unique_lock<std::mutex> held(turn, std::defer_lock);
            if (in_turn) held.lock();
            wrong[thread] = wrong_bytes(base + thread * EACH);
        });
    }
    for (auto &thread : threads) thread.join();
    for (const size_t bytes : wrong) sum += bytes;
    return sum;
}

static size_t of_streams() {
    unsigned *wrong, found = 0;
    CHECK(cudaMalloc(&wrong, sizeof *wrong));
    CHECK(cudaMemset(wrong, 0, sizeof *wrong));
    CUstream one, other;
    CHECK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    for (unsigned round = 1; round <= ROUNDS; ++round) {
        const CUdeviceptr at = mapped();
        const size_t half = ALL / 2;
        put<<<1, 32, 0, one>>>((unsigned *)at, half / 4, round);
        put<<<1, 32, 0, other>>>((unsigned *)(at + half), BYTES / 4, round);
        look<<<1, 32, 0, other>>>((unsigned *)(at + half), BYTES / 4, round, wrong);
        CHECK(cudaGetLastError());
        CHECK(cuCtxSynchronize());
    }
    CHECK(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
    return 4 * (size_t)found;
}

int main(int count, char **words) {
    const auto given = [&](const char *word) {
        for (int i = 1; i < count; ++i)
            if (std::strcmp(words[i], word) == 0) return true;
        return false;
    };
    CHECK(cudaSetDevice(0));
    void *plain = nullptr;
    CHECK(cudaMalloc(&plain, ALL));
    size_t wrong = 0;
    if (given("threads")) wrong += of_threads(given("plain") ? (CUdeviceptr)plain : mapped(), given("in-turn"));
    if (given("streams")) wrong += of_streams();
    std::printf("%zu wrong bytes\n", wrong);
    return wrong != 0;
}
