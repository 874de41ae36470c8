// What initcheck makes of memory mapped with cuMemMap while several threads call the driver: nothing of
// the crate is in it. Eight threads fill 4 KiB on one stream and copy it on another that waits, fifty
// times, each time to another place, and compare every byte in the end.
//
//   nvcc -std=c++17 -arch=sm_80 -o initcheck-threads scripts/initcheck-threads.cu -lcuda
//   compute-sanitizer --tool initcheck ./initcheck-threads mapped            thousands of reports
//   compute-sanitizer --tool initcheck ./initcheck-threads mapped in-turn    none: a thread at a time
//   compute-sanitizer --tool initcheck ./initcheck-threads                   none: cudaMalloc
//
// No byte is wrong in any of them, so every copy read what the fill before it wrote.
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

int main(int count, char **words) {
    bool map = false, in_turn = false;
    for (int i = 1; i < count; ++i) {
        map = map || std::strcmp(words[i], "mapped") == 0;
        in_turn = in_turn || std::strcmp(words[i], "in-turn") == 0;
    }
    CHECK(cudaSetDevice(0));
    void *plain = nullptr;
    CHECK(cudaMalloc(&plain, ALL));
    const CUdeviceptr base = map ? mapped() : (CUdeviceptr)plain;
    std::mutex turn;
    std::vector<std::thread> threads;
    size_t wrong[THREADS] = {};
    for (size_t thread = 0; thread < THREADS; ++thread) {
        threads.emplace_back([&, thread] {
            CHECK(cudaSetDevice(0));
            std::unique_lock<std::mutex> held(turn, std::defer_lock);
            if (in_turn) held.lock();
            wrong[thread] = wrong_bytes(base + thread * EACH);
        });
    }
    for (auto &thread : threads) thread.join();
    size_t sum = 0;
    for (const size_t bytes : wrong) sum += bytes;
    std::printf("%zu wrong bytes\n", sum);
    return sum != 0;
}
