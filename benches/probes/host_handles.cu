// What spilling would cost by handles that lie in host memory, mapped at the address where the device's own
// was, beside a copy to page-locked memory. A program of its own, for a machine with a GPU and nvcc:
//
//   nvcc -arch=sm_90 -O2 -o host_handles benches/probes/host_handles.cu -lcuda && ./host_handles > lines
//
// One line of JSON a size: milliseconds to make each kind of memory, to bring contents there and back, and
// what a kernel reads a second from each.
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <algorithm>
#include <chrono>
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

__global__ void add_up(const uint4 *data, size_t count, unsigned *out) {
    unsigned sum = 0;
    for (size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x) {
        uint4 x = data[at];
        sum += x.x ^ x.y ^ x.z ^ x.w;
    }
    atomicAdd(out, sum);
}

static double now() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename Work>
static double median(Work work) {
    std::vector<double> took;
    for (int round = 0; round < 7; ++round) {
        double begun = now();
        work();
        took.push_back(now() - begun);
    }
    std::sort(took.begin(), took.end());
    return took[took.size() / 2];
}

static CUmemAllocationProp of(CUmemLocationType type) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = type;
    return prop;
}

static void map(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle) {
    CHECK(cuMemMap(at, bytes, 0, handle, 0));
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cuMemSetAccess(at, bytes, &access, 1));
}

static void measure(size_t bytes, CUstream stream, CUdeviceptr out) {
    CUmemAllocationProp here = of(CU_MEM_LOCATION_TYPE_DEVICE), there = of(CU_MEM_LOCATION_TYPE_HOST_NUMA);
    CUdeviceptr addr = 0, beside = 0;
    CUmemGenericAllocationHandle own, host;
    CHECK(cuMemAddressReserve(&addr, bytes, 0, 0, 0));
    CHECK(cuMemAddressReserve(&beside, bytes, 0, 0, 0));
    void *locked = nullptr;
    double make_locked = median([&] {
        if (locked)
            CHECK(cuMemFreeHost(locked));
        CHECK(cuMemHostAlloc(&locked, bytes, 0));
    });
    host = 0;
    double make_handle = median([&] {
        if (host)
            CHECK(cuMemRelease(host));
        CHECK(cuMemCreate(&host, bytes, &there, 0));
    });
    CHECK(cuMemCreate(&own, bytes, &here, 0));
    map(addr, bytes, own);
    CHECK(cuMemsetD8(addr, 7, bytes));
    auto read = [&](CUdeviceptr from) {
        return median([&] {
            add_up<<<132 * 8, 256, 0, stream>>>(reinterpret_cast<const uint4 *>(from), bytes / 16,
                                                reinterpret_cast<unsigned *>(out));
            CHECK(cuStreamSynchronize(stream));
        });
    };
    double copy_down = median([&] {
        CHECK(cuMemcpyDtoHAsync(locked, addr, bytes, stream));
        CHECK(cuStreamSynchronize(stream));
    });
    double copy_up = median([&] {
        CHECK(cuMemcpyHtoDAsync(addr, locked, bytes, stream));
        CHECK(cuStreamSynchronize(stream));
    });
    double read_own = read(addr);
    // The way there: the host's handle beside, a copy, and the host's handle in place of the device's. The way
    // back likewise, with a new handle of the device.
    std::vector<double> there_ms, back_ms, reads;
    for (int round = 0; round < 5; ++round) {
        double begun = now();
        map(beside, bytes, host);
        CHECK(cuMemcpyDtoDAsync(beside, addr, bytes, stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemUnmap(addr, bytes));
        CHECK(cuMemRelease(own));
        CHECK(cuMemUnmap(beside, bytes));
        map(addr, bytes, host);
        there_ms.push_back(now() - begun);
        reads.push_back(read(addr));
        begun = now();
        CHECK(cuMemCreate(&own, bytes, &here, 0));
        map(beside, bytes, own);
        CHECK(cuMemcpyDtoDAsync(beside, addr, bytes, stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemUnmap(addr, bytes));
        CHECK(cuMemUnmap(beside, bytes));
        map(addr, bytes, own);
        back_ms.push_back(now() - begun);
    }
    for (auto *all : {&there_ms, &back_ms, &reads})
        std::sort(all->begin(), all->end());
    double rate = bytes / 1e6;
    printf("{\"size\":\"%zu MiB\",\"make page-locked ms\":%.3f,\"make handle ms\":%.3f,\"copy down ms\":%.3f,"
           "\"copy up ms\":%.3f,\"handle down ms\":%.3f,\"handle up ms\":%.3f,\"read device GB/s\":%.1f,"
           "\"read in place GB/s\":%.1f}\n",
           bytes >> 20, make_locked, make_handle, copy_down, copy_up, there_ms[2], back_ms[2], rate / read_own,
           rate / reads[2]);
    unsigned char last = 0;
    CHECK(cuMemcpyDtoH(&last, addr + bytes - 1, 1));
    if (last != 7)
        fprintf(stderr, "%zu MiB: the last byte is %d\n", bytes >> 20, last);
    CHECK(cuMemUnmap(addr, bytes));
    CHECK(cuMemRelease(own));
    CHECK(cuMemRelease(host));
    CHECK(cuMemFreeHost(locked));
    CHECK(cuMemAddressFree(addr, bytes));
    CHECK(cuMemAddressFree(beside, bytes));
}

int main() {
    CHECK(cuInit(0));
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr out;
    CHECK(cuMemAlloc(&out, 4));
    for (size_t mib : {2, 32, 256, 1024})
        measure(mib << 20, stream, out);
    return 0;
}
