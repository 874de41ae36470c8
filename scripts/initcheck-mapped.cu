// What initcheck makes of memory mapped with cuMemMap while several threads call the driver: it takes
// bytes for unwritten that were written. Nothing of the crate is in this, and no byte is wrong.
//
//   nvcc -std=c++17 -o initcheck-mapped scripts/initcheck-mapped.cu -lcuda
//   compute-sanitizer --tool initcheck ./initcheck-mapped            reports, by the thousand
//   compute-sanitizer --tool initcheck ./initcheck-mapped in-turn    none: a thread at a time
//   compute-sanitizer --tool initcheck ./initcheck-mapped plain      none: memory of cudaMalloc
//
// Eight threads fill 4 KiB on one stream and copy it on another that waits, fifty times, each time to
// another place, and compare every byte in the end.
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

int main(int count, char **words) {
    const auto given = [&](const char *word) {
        for (int i = 1; i < count; ++i)
            if (std::strcmp(words[i], word) == 0) return true;
        return false;
    };
    CHECK(cudaSetDevice(0));
    void *plain = nullptr;
    CHECK(cudaMalloc(&plain, ALL));
    const size_t wrong = of_threads(given("plain") ? (CUdeviceptr)plain : mapped(), given("in-turn"));
    std::printf("%zu wrong bytes\n", wrong);
    return wrong != 0;
}
