#include <doctest/doctest.h>

#include <atomic>

#include "cluster.h"

using namespace ringcomm;
using namespace ringcomm::testing;

namespace {

// Small integers in float32: sums are exact, so one wrong byte shows.
std::vector<float> pattern(size_t count, int rank) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>((i * 7 + static_cast<size_t>(rank) * 13) % 101);
  }
  return data;
}

size_t countWrong(const std::vector<float>& got, int world) {
  size_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    float expected = 0;
    for (int rank = 0; rank < world; ++rank) {
      expected += static_cast<float>((i * 7 + static_cast<size_t>(rank) * 13) % 101);
    }
    wrong += got[i] != expected ? 1 : 0;
  }
  return wrong;
}

}  // namespace

TEST_CASE("all_reduce sums over ranks of every world size and many sizes") {
  for (const int world : {1, 2, 3, 5}) {
    CAPTURE(world);
    std::atomic<size_t> wrong{0};
    std::atomic<int> failures{0};
    runCluster(world, Options(), [&](Member& member) {
      for (const size_t count : {0, 1, 3, 17, 1000, 70000, 1000003}) {
        std::vector<float> data = pattern(count, member.rank);
        failures += member.allReduce(data, DType::kFloat32).ok() ? 0 : 1;
        wrong += countWrong(data, world);
      }
    });
    CHECK(failures == 0);
    CHECK(wrong == 0);
  }
}
