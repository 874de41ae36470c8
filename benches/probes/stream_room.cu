// How much a stream takes before the driver keeps the thread that queues, and which calls of other threads wait
// meanwhile. A program of its own, for a machine with a GPU and nvcc:
//
//   nvcc -std=c++17 -arch=sm_90 -O2 -o stream_room benches/probes/stream_room.cu -lcuda && ./stream_room > lines
//
// A host call, or a wait for a value in host memory, holds a stream back. A thread queues work of one kind behind it
// until it makes no progress for a tenth of a second, or has queued 20,000. If the stream is full, another thread makes
// one call on another stream; if it has not returned after a tenth of a second, the call waits. Then the stream goes on.
// Each call has a full stream of its own. One line of JSON for each way to hold a stream and each kind of work.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        CUresult code = call;                                                                      \
        if (code != CUDA_SUCCESS) {                                                                \
            const char *name = "?";                                                                \
            cuGetErrorName(code, &name);                                                           \
            fprintf(stderr, "%s: %s\n", #call, name);                                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

constexpr int MOST = 20000;
constexpr auto PATIENCE = std::chrono::milliseconds(100);

struct Arguments {
    char bytes[1024];
};

__global__ void launch_small(unsigned *out) {
    if (out != nullptr) atomicAdd(out, 1);
}

__global__ void launch_large(unsigned *out, Arguments arguments) {
    if (out != nullptr) atomicAdd(out, arguments.bytes[threadIdx.x]);
}

static std::atomic<bool> going_on;

static void CUDA_CB hold(void *) {
    while (!going_on.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}
static void CUDA_CB nothing(void *) {}

struct Named {
    std::string name;
    std::function<void()> run;
};

int main() {
    CHECK(cuInit(0));
    CUdevice device;
    CUcontext context;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CUstream held, other;
    for (CUstream *stream : {&held, &other}) CHECK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr from, to;
    CHECK(cuMemAlloc(&from, 64 << 20));
    CHECK(cuMemAlloc(&to, 64 << 20));
    void *locked;
    CHECK(cuMemHostAlloc(&locked, 64 << 20, CU_MEMHOSTALLOC_DEVICEMAP));
    volatile unsigned *word;
    CUdeviceptr word_address;
    CHECK(cuMemHostAlloc((void **)&word, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK(cuMemHostGetDevicePointer(&word_address, (void *)word, 0));
    CUevent event, recorded;
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&recorded, CU_EVENT_DISABLE_TIMING));

    auto copy = [&](size_t bytes) { return [=] { CHECK(cuMemcpyDtoDAsync(to, from, bytes, held)); }; };
    std::vector<char> pageable(1 << 20);
    auto upload = [&](const void *from, size_t bytes) {
        return [=] { CHECK(cuMemcpyHtoDAsync(to, from, bytes, held)); };
    };
    std::vector<Named> kinds{
        {"launch of 8 bytes", [&] { launch_small<<<1, 1, 0, held>>>(nullptr); }},
        {"launch of 1 KiB", [&] { launch_large<<<1, 1, 0, held>>>(nullptr, Arguments{}); }},
        {"copy of 4 KiB", copy(4 << 10)},
        {"copy of 32 MiB", copy(32 << 20)},
        {"upload of 4 KiB, page-locked", upload(locked, 4 << 10)},
        {"upload of 4 KiB, pageable", upload(pageable.data(), 4 << 10)},
        {"upload of 64 KiB, pageable", upload(pageable.data(), 64 << 10)},
        {"upload of 1 MiB, pageable", upload(pageable.data(), 1 << 20)},
        {"fill of 4 KiB", [&] { CHECK(cuMemsetD8Async(to, 0, 4 << 10, held)); }},
        {"record", [&] { CHECK(cuEventRecord(event, held)); }},
        {"wait", [&] { CHECK(cuStreamWaitEvent(held, recorded, 0)); }},
        {"host call", [&] { CHECK(cuLaunchHostFunc(held, nothing, nullptr)); }},
    };
    std::vector<Named> calls{
        {"launch", [&] { launch_small<<<1, 1, 0, other>>>(nullptr); }},
        {"copy", [&] { CHECK(cuMemcpyDtoDAsync(to, from, 4096, other)); }},
        {"record", [&] { CHECK(cuEventRecord(event, other)); }},
        {"query", [&] { cuEventQuery(recorded); }},
        {"wait", [&] { CHECK(cuStreamWaitEvent(other, recorded, 0)); }},
        {"host call", [&] { CHECK(cuLaunchHostFunc(other, nothing, nullptr)); }},
        {"new event", [&] {
             CUevent made;
             CHECK(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
         }},
        {"new handle", [&] {
             CUmemAllocationProp of{};
             of.type = CU_MEM_ALLOCATION_TYPE_PINNED;
             of.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
             of.location.id = device;
             CUmemGenericAllocationHandle handle;
             CHECK(cuMemCreate(&handle, 2 << 20, &of, 0));
             CHECK(cuMemRelease(handle));
         }},
    };
    // What is made or loaded on first use, before a stream is held back.
    for (auto *list : {&kinds, &calls})
        for (Named &work : *list) work.run();
    CHECK(cuCtxSynchronize());

    for (const char *by : {"host call", "value"}) {
        for (Named &kind : kinds) {
            int room = MOST;
            std::string waiting;
            for (Named &call : calls) {
                going_on = false;
                *word = 0;
                if (by[0] == 'h')
                    CHECK(cuLaunchHostFunc(held, hold, nullptr));
                else
                    CHECK(cuStreamWaitValue32(held, word_address, 1, CU_STREAM_WAIT_VALUE_EQ));
                CHECK(cuEventRecord(recorded, held));
                std::atomic<int> queued{0};
                std::thread queuer([&] {
                    CHECK(cuCtxSetCurrent(context));
                    for (; queued < MOST; queued++) kind.run();
                });
                for (int before = -1; before != queued && before < MOST;) {
                    before = queued;
                    std::this_thread::sleep_for(PATIENCE);
                }
                room = std::min(room, queued.load());
                bool full = queued < MOST;
                std::atomic<bool> returned{!full};
                std::thread caller([&] {
                    CHECK(cuCtxSetCurrent(context));
                    if (full) call.run();
                    returned = true;
                });
                std::this_thread::sleep_for(PATIENCE);
                if (!returned) waiting += (waiting.empty() ? "" : ", ") + call.name;
                *word = 1;
                going_on = true;
                queuer.join();
                caller.join();
                CHECK(cuCtxSynchronize());
                if (!full) break;
            }
            printf("{\"held by\": \"%s\", \"work\": \"%s\", \"room\": \"%s%d\", \"calls that wait\": \"%s\"}\n", by,
                   kind.name.c_str(), room == MOST ? "over " : "", room == MOST ? MOST - 1 : room,
                   waiting.empty() ? "none" : waiting.c_str());
            fflush(stdout);
        }
    }
}
