// Speed of every reduction kernel: GB/s of source bytes, by dtype, op, instruction set and size.
//
//   kernels_bench [--quick] [--offset N]
//
// The best of several short runs is printed, so that a noisy neighbour costs a run and not a
// result. --quick measures each cell for 1 ms instead of 20; --offset puts dst N elements behind a
// cache line's start, as the blocks of an odd-sized tensor lie.
#include "reduce/kernels.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

namespace {

using ringcomm::DType;
using ringcomm::Isa;
using ringcomm::ReduceKernel;
using ringcomm::ReduceOp;

constexpr size_t kSizes[] = {16U << 10, 128U << 10, 1U << 20, 64U << 20};
constexpr size_t kLargest = 64U << 20;
constexpr size_t kCombineParts = 4;
constexpr size_t kLine = 64;

constexpr DType kDTypes[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                             DType::kInt64,   DType::kInt32,   DType::kInt16,   DType::kInt8,
                             DType::kUInt8,   DType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum,  ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kBand, ReduceOp::kBor,     ReduceOp::kBxor};

struct Options {
  double cellSeconds = 0.02;
  size_t offset = 0;
};

struct AlignedFree {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{kLine}); }
};
using Buffer = std::unique_ptr<std::byte[], AlignedFree>;

// Zeros, which no op turns into anything slower to compute with; written, so that pages exist.
Buffer makeBuffer() {
  const size_t bytes = kLargest + kLine * 16;
  Buffer buffer(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kLine})));
  std::memset(buffer.get(), 0, bytes);
  return buffer;
}

double secondsNow() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// The best seconds a call over at least five batches and `limit` seconds.
template <typename Call>
double bestSeconds(double limit, size_t bytes, const Call& call) {
  const size_t batch = std::max<size_t>(1, (256U << 10) / bytes);
  const double end = secondsNow() + limit;
  double best = 1e9;
  call();
  for (int runs = 0; runs < 5 || secondsNow() < end; ++runs) {
    const double start = secondsNow();
    for (size_t i = 0; i < batch; ++i) {
      call();
    }
    best = std::min(best, (secondsNow() - start) / static_cast<double>(batch));
  }
  return best;
}

void printRow(const char* what, DType dtype, ReduceOp op, Isa isa) {
  std::printf("%-11s %-9s %-8s %-7s", what, ringcomm::dtypeName(dtype), ringcomm::reduceOpName(op),
              ringcomm::isaName(isa));
}

void benchAccumulate(const Options& options, DType dtype, ReduceOp op, std::byte* dst,
                     const std::byte* src) {
  for (const Isa isa : ringcomm::supportedIsas()) {
    const ReduceKernel* kernel = ringcomm::findKernel(dtype, op, isa);
    if (kernel == nullptr) {
      continue;
    }
    printRow("accumulate", dtype, op, isa);
    const size_t elementSize = ringcomm::dtypeSize(dtype);
    for (const size_t bytes : kSizes) {
      const double seconds = bestSeconds(options.cellSeconds, bytes, [&] {
        kernel->accumulate(dst + options.offset * elementSize, src, bytes / elementSize);
      });
      std::printf(" %9.1f", static_cast<double>(bytes) / seconds / 1e9);
    }
    std::printf("\n");
  }
}

// All parts' bytes count as source bytes; they share what the largest column may touch.
void benchCombine(const Options& options, DType dtype, std::byte* dst, const std::byte* src) {
  for (const Isa isa : ringcomm::supportedIsas()) {
    const ReduceKernel* kernel = ringcomm::findKernel(dtype, ReduceOp::kSum, isa);
    printRow("combine x4", dtype, ReduceOp::kSum, isa);
    const size_t elementSize = ringcomm::dtypeSize(dtype);
    for (const size_t bytes : kSizes) {
      const size_t part = bytes / kCombineParts;
      std::vector<const void*> parts;
      for (size_t i = 0; i < kCombineParts; ++i) {
        parts.push_back(src + i * part);
      }
      const double seconds = bestSeconds(options.cellSeconds, bytes, [&] {
        kernel->combine(dst + options.offset * elementSize, parts.data(), parts.size(),
                        part / elementSize);
      });
      std::printf(" %9.1f", static_cast<double>(bytes) / seconds / 1e9);
    }
    std::printf("\n");
  }
}

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quick") {
      options->cellSeconds = 0.001;
    } else if (argument == "--offset" && i + 1 < argc) {
      char* end = nullptr;
      options->offset = std::strtoul(argv[++i], &end, 10);
      if (*end != '\0' || options->offset >= kLine) {
        std::fprintf(stderr, "--offset is %s; allowed: 0 to 63 elements\n", argv[i]);
        return false;
      }
    } else {
      std::fprintf(stderr, "usage: %s [--quick] [--offset ELEMENTS]\n", argv[0]);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) {
    return 2;
  }
  const Buffer dst = makeBuffer();
  const Buffer src = makeBuffer();
  std::printf("GB/s of source bytes (10^9), dst %zu elements off a cache line\n", options.offset);
  std::printf("%-11s %-9s %-8s %-7s", "kernel", "dtype", "op", "isa");
  std::printf(" %9s %9s %9s %9s\n", "16 KiB", "128 KiB", "1 MiB", "64 MiB");
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      benchAccumulate(options, dtype, op, dst.get(), src.get());
    }
    benchCombine(options, dtype, dst.get(), src.get());
  }
  return 0;
}
