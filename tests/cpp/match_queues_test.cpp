#include "engine/match_queues.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace ringcomm;

TEST_CASE("what came first of the peers and the tag asked for is taken, once") {
  MatchQueues<std::string> queues;
  const std::vector<int> all = {-1, 0, 1, 2};
  const std::vector<int> one = {1};
  CHECK_FALSE(queues.take(all, 0).has_value());
  queues.push(2, 0, "a");
  queues.push(1, 0, "b");
  queues.push(1, 7, "c");
  queues.push(1, 0, "d");
  queues.push(-1, 0, "e");
  queues.push(1, -7, "f");
  CHECK(queues.take(one, 0) == "b");
  CHECK(queues.take(all, 0) == "a");
  CHECK(queues.take(all, 0) == "d");
  CHECK_FALSE(queues.take(one, 0).has_value());
  CHECK(queues.take(all, 0) == "e");
  CHECK(queues.take(one, -7) == "f");
  CHECK(queues.take(all, 7) == "c");
  queues.push(1, 7, "g");
  queues.clear();
  CHECK_FALSE(queues.take(all, 7).has_value());
}
