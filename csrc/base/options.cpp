#include "base/options.h"

#include <charconv>
#include <sstream>

namespace ringcomm {

namespace {

struct Range {
  int64_t least;
  int64_t greatest;
};

Status setNumber(int64_t& field, const std::string& name, const std::string& value, Range range) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < range.least || number > range.greatest) {
    return {Code::kInvalidArgument,
            "option " + name + " is '" + value + "', but must be a whole number from " +
                std::to_string(range.least) + " to " + std::to_string(range.greatest)};
  }
  field = number;
  return {};
}

}  // namespace

std::vector<OptionRow> optionTable() {
  std::vector<OptionRow> rows;
#define RC_NUMBER(scope, field, name, preset, least, greatest, doc) \
  rows.push_back({name, #scope[0], std::to_string(int64_t{preset}), doc});
#define RC_TEXT(scope, field, name, preset, doc) rows.push_back({name, #scope[0], preset, doc});
  RC_OPTIONS(RC_NUMBER, RC_TEXT)
#undef RC_NUMBER
#undef RC_TEXT
  return rows;
}

Status setOption(Options& options, const std::string& name, const std::string& value) {
#define RC_NUMBER(scope, field, text, preset, least, greatest, doc)      \
  if (name == (text)) {                                                  \
    return setNumber(options.field, name, value, {(least), (greatest)}); \
  }
#define RC_TEXT(scope, field, text, preset, doc) \
  if (name == (text)) {                          \
    options.field = value;                       \
    return {};                                   \
  }
  RC_OPTIONS(RC_NUMBER, RC_TEXT)
#undef RC_NUMBER
#undef RC_TEXT
  std::string known;
  for (const OptionRow& row : optionTable()) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return {Code::kInvalidArgument, "there is no option '" + name + "'; there are: " + known};
}

std::string encodeGroupOptions(const Options& options) {
  std::ostringstream out;
#define RC_VALUE(scope, field, name, ...)          \
  if constexpr (#scope[0] == 'G') {                \
    out << (name) << '=' << options.field << '\n'; \
  }
  RC_OPTIONS(RC_VALUE, RC_VALUE)
#undef RC_VALUE
  return out.str();
}

Status adoptGroupOptions(Options& options, const std::string& encoded) {
  std::istringstream in(encoded);
  for (std::string line; std::getline(in, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) {
      return {Code::kProtocol, "rank 0 sent options that make no sense: '" + line + "'"};
    }
    RC_RETURN_IF_ERROR(setOption(options, line.substr(0, equals), line.substr(equals + 1)));
  }
  return {};
}

}  // namespace ringcomm
