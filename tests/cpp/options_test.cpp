#include "base/options.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

using namespace ringcomm;

TEST_CASE("every row of the table has a name of its own, a scope and words, and takes its preset") {
  std::set<std::string> names;
  for (const OptionRow& row : optionTable()) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(std::string("PLG").find(row.scope) != std::string::npos);
    CHECK(std::string(row.doc).size() > 10);
    Options options;
    CHECK(setOption(options, row.name, row.preset).ok());
  }
  CHECK(names.contains("slice_bytes"));
}

TEST_CASE("a number outside its bounds is refused with the bounds, and changes nothing") {
  Options options;
  for (const char* value : {"4095", "1048577", "-1", "", "64k", "65536 ", " 65536", "1e5", "0x1000",
                            "99999999999999999999"}) {
    CAPTURE(value);
    const Status status = setOption(options, "slice_bytes", value);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().find("slice_bytes") != std::string::npos);
    CHECK(status.message().find(std::string("'") + value + "'") != std::string::npos);
    CHECK(status.message().find("from 4096 to 1048576") != std::string::npos);
    CHECK(options.sliceBytes == 262144);
  }
  for (const char* value : {"4096", "1048576"}) {
    CHECK(setOption(options, "slice_bytes", value).ok());
    CHECK(options.sliceBytes == std::stoll(value));
  }
}

TEST_CASE("an unknown option is refused with the list of those that exist") {
  Options options;
  const Status status = setOption(options, "slice_byte", "4096");
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("'slice_byte'") != std::string::npos);
  for (const OptionRow& row : optionTable()) {
    CHECK(status.message().find(row.name) != std::string::npos);
  }
}

TEST_CASE("the group's options travel, and no others") {
  Options rank0;
  for (const OptionRow& row : optionTable()) {
    const bool isNumber =
        !row.preset.empty() && std::all_of(row.preset.begin(), row.preset.end(),
                                           [](char c) { return c >= '0' && c <= '9'; });
    const std::string value = isNumber ? std::to_string(std::stoll(row.preset) + 1) : "changed=x,y";
    REQUIRE(setOption(rank0, row.name, value).ok());
  }
  Options other;
  REQUIRE(adoptGroupOptions(other, encodeGroupOptions(rank0)).ok());
  CHECK(other.lanes == rank0.lanes);
  CHECK(other.sliceBytes == rank0.sliceBytes);
  CHECK(other.directBytes == rank0.directBytes);
  CHECK(other.algorithms == "changed=x,y");
  CHECK(other.port == Options().port);
  CHECK(other.secret == Options().secret);
  CHECK(other.spinMicros == Options().spinMicros);
}

TEST_CASE("nonsense from rank 0 is refused") {
  Options options;
  CHECK(adoptGroupOptions(options, "no equals sign\n").code() == Code::kProtocol);
  CHECK_FALSE(adoptGroupOptions(options, "lanes=0\n").ok());
  CHECK_FALSE(adoptGroupOptions(options, "of_another_version=1\n").ok());
  CHECK(adoptGroupOptions(options, "").ok());
  CHECK(options.lanes == Options().lanes);
}
