// What messages are made of: values as of JSON, calls, a tool's definition. Errors are values; nothing here throws
// them.
#pragma once
#include <stdint.h>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace rtcontrol {

// What is wrong, and what to do. `code` is one of the protocol's (section 9), `field` the path of what is to blame.
struct Error {
    std::string code, field, what, remedy;
    std::string text() const { return (field.empty() ? what : field + ": " + what) + " " + remedy; }
};
using Problem = std::optional<Error>;  // nothing: all is well

class Value;
struct Entry;
using List = std::vector<Value>;
using Map = std::vector<Entry>;      // in the order given
using Bytes = std::vector<uint8_t>;  // of an array; nowhere else allowed

// null, a boolean, a number, a string, a list or a map.
class Value {
 public:
    std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, List, Map, Bytes> data;

    Value() = default;
    Value(std::nullptr_t) {}
    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
    Value(T given) {
        if constexpr (std::is_same_v<T, bool>) data = given;
        else if constexpr (std::is_floating_point_v<T>) data = double(given);
        else if constexpr (std::is_signed_v<T>) data = int64_t(given);
        else if (given <= uint64_t(INT64_MAX)) data = int64_t(given);
        else data = uint64_t(given);
    }
    Value(const char* text) : data(std::string(text)) {}
    Value(std::string text) : data(std::move(text)) {}
    Value(List list) : data(std::move(list)) {}
    Value(Bytes bytes) : data(std::move(bytes)) {}
    inline Value(Map map);

    bool is_null() const { return std::holds_alternative<std::monostate>(data); }
    template <class T> const T* as() const { return std::get_if<T>(&data); }
    template <class T> T* as() { return std::get_if<T>(&data); }
    // What it holds, or else what is given (nothing) where it holds something else.
    bool flag(bool otherwise = false) const { return as<bool>() ? *as<bool>() : otherwise; }
    int64_t whole(int64_t otherwise = 0) const { return as<int64_t>() ? *as<int64_t>() : otherwise; }
    double number(double otherwise = 0) const {
        return as<double>()     ? *as<double>()
               : as<uint64_t>() ? double(*as<uint64_t>())
               : as<int64_t>()  ? double(whole())
                                : otherwise;
    }
    const std::string& text() const { return held<std::string>(); }
    const List& list() const { return held<List>(); }
    const Map& map() const { return held<Map>(); }
    inline const Value& operator[](const std::string& key) const;  // of a map; null where it has none
    inline void set(const std::string& key, Value value);          // makes it a map; a null is left out

 private:
    template <class T> const T& held() const {
        static const T nothing{};
        return as<T>() ? *as<T>() : nothing;
    }
};

struct Entry {
    std::string key;
    Value value;
};

Value::Value(Map map) : data(std::move(map)) {}
const Value& Value::operator[](const std::string& key) const {
    static const Value null;
    for (const Entry& entry : map())
        if (entry.key == key) return entry.value;
    return null;
}
void Value::set(const std::string& key, Value value) {
    if (value.is_null()) return;
    if (!as<Map>()) data = Map{};
    for (Entry& entry : *as<Map>())
        if (entry.key == key) return void(entry.value = std::move(value));
    as<Map>()->push_back({key, std::move(value)});
}

// A function call. Arguments by the names of the tool's schema; optional ones may be left out.
struct Call {
    std::string name;
    Value arguments = Map{};
    const Value& operator[](const std::string& argument) const { return arguments[argument]; }
    Value value() const { return Map{{"name", name}, {"arguments", arguments}}; }
    static std::vector<Call> of(const Value& one_or_several) {
        std::vector<Call> calls;
        if (one_or_several.as<Map>()) calls.push_back({one_or_several["name"].text(), one_or_several["arguments"]});
        for (const Value& one : one_or_several.list()) calls.push_back({one["name"].text(), one["arguments"]});
        return calls;
    }
};

// A tool's definition, for Options::tools: Tool("steer", "Turn the wheel.").integer("angle", -30, 30, 10).
class Tool {
 public:
    explicit Tool(std::string name, std::string about = "") : name_(std::move(name)), about_(std::move(about)) {}
    Tool& integer(const std::string& name, int64_t minimum, int64_t maximum, int64_t step = 1) {
        return parameter(name,
                         Map{{"type", "integer"}, {"minimum", minimum}, {"maximum", maximum}, {"multipleOf", step}});
    }
    Tool& number(const std::string& name, double minimum, double maximum, double step) {
        return parameter(name,
                         Map{{"type", "number"}, {"minimum", minimum}, {"maximum", maximum}, {"multipleOf", step}});
    }
    Tool& flag(const std::string& name) { return parameter(name, Map{{"type", "boolean"}}); }
    Tool& choice(const std::string& name, const std::vector<std::string>& values) {
        return parameter(name, Map{{"type", "string"}, {"enum", List(values.begin(), values.end())}});
    }
    Tool& parameter(const std::string& name, Value schema, bool required = true) {  // any other JSON schema
        properties_.push_back({name, std::move(schema)});
        if (required) required_.push_back(name);
        return *this;
    }
    operator Value() const {
        const Map schema{{"type", "object"}, {"properties", properties_}, {"required", required_}};
        return Map{{"type", "function"},
                   {"function", Map{{"name", name_}, {"description", about_}, {"parameters", schema}}}};
    }

 private:
    std::string name_, about_;
    Map properties_;
    List required_;
};

}  // namespace rtcontrol
