// The messages of protocol 1.1 that this client speaks, and messages to parts and back (docs/protocol.md, section 4).
#pragma once
#include "msgpack.h"

namespace rtcontrol {

constexpr int kMajor = 1, kMinor = 1;

// Whether a version is spoken here: of this major version, and no earlier minor one.
inline bool spoken(const List& version) {
    return !version.empty() && version[0].whole() == kMajor && (version.size() < 2 || version[1].whole() >= kMinor);
}

using Parts = std::vector<std::string>;

namespace detail {

// A record's fields: `name!kind` must be there, `name?kind` may. Kinds: see check().
inline const char* record(std::string_view name) {
    static const std::pair<std::string_view, const char*> all[] = {
        {"hello",
         "type!any protocol![count:2:2 client!{program t_client_ns!instant capabilities?[str:1:64:0:32 agent?str:0:256 "
         "tools?[map:1:128 instruction?long model?str:0:256 safe_call?{call_map safe_calls?[{call_map:1:16 "
         "pacing?server|client hz?hz deadline_ms?ms ttl_ms?ms max_age_ms?ms on_miss?hold|safe hold_ms?ms "
         "robot?str:1:64 resume?token"},
        {"welcome",
         "type!any protocol![count:0:4096 server!{program session!token resumed!flag epoch!count t_client_ns!instant "
         "t_server_ns!instant capabilities?[str:1:64:0:4096 agent?text tools![map:0:4096 instruction!text model!text "
         "model_trained_on_tools!flag trained?flag safe_call?{call_map safe_calls?[{call_map:1:16 release_ns?instant "
         "pacing!server|client hz!hz period_ms!ms deadline_ms!ms ttl_ms!ms max_age_ms!ms on_miss!hold|safe hold_ms!ms "
         "heartbeat_ms!ms session_grace_s!positive limits!whole_map warnings?[text:0:4096"},
        {"observe", "type!any session!token seq!count epoch!count t_ns!instant text?long data?map arrays?[{array:0:16"},
        {"call",
         "type!any session!token tick!count epoch!count seq_obs?count t_obs_ns?instant status!fresh|held|safe "
         "call?{call_map calls?[{call_map:1:16 release_ns?instant ttl_ms!ms deadline_ns!instant t_server_ns!instant "
         "confidence?unit cause?text timing?{timing"},
        {"executed",
         "type!any session!token tick!count epoch!count outcome!executed|expired|failed|refused t_ns!instant "
         "result?long error?long"},
        {"instruct", "type!any session!token instruction!long said?long by?text confidence?unit"},
        {"reset", "type!any session!token epoch!count ended?{ended"},
        {"ping", "type!any id!count t_ns!instant"},
        {"pong", "type!any id!count t_ping_ns!instant t_received_ns!instant t_sent_ns!instant"},
        {"error",
         "type!any code!text message!text remedy?text field?text seq?count t_client_ns?instant retryable?flag "
         "fatal?flag dropped?count"},
        {"bye", "type!any session?token reason?str:0:1024 reconnect?flag"},
        {"{program", "name!str:1:64 version?str:0:64 language?str:0:64"},
        {"{call_map", "name!str:1:256 arguments?map"},
        {"{timing", "age_ms?ms decide_ms?ms late_ms?ms"},
        {"{ended", "seed?whole return?real success?flag seconds?positive"},
        {"{array", "name!str:1:64 dtype!b1|i1|u1|i2|u2|f2|i4|u4|f4|i8|u8|f8 shape![dimension:0:8 data!bytes"}};
    for (const auto& [known, fields] : all)
        if (known == name) return fields;
    return nullptr;
}

inline Problem wrong(const std::string& path, const std::string& what) {
    return Error{"invalid", path, "It " + what + ".", "Correct this field (docs/protocol.md, section 4)."};
}
inline std::string_view cut(std::string_view& rest, char mark) {  // at the first mark
    const size_t at = std::min(rest.find(mark), rest.size());
    const std::string_view head = rest.substr(0, at);
    rest.remove_prefix(std::min(at + 1, rest.size()));
    return head;
}
inline size_t bound(std::string_view& kind) {  // the last `:number`, which it takes away
    const size_t at = kind.rfind(':'), number = std::stoul(std::string(kind.substr(at + 1)));
    kind = kind.substr(0, at);
    return number;
}
inline bool make_whole(Value& value) {  // 5.0 is the integer 5 from here on
    const double* wide = value.as<double>();
    if (wide && std::floor(*wide) == *wide && *wide >= -0x1p63 && *wide < 0x1p64)
        value = *wide < 0x1p63 ? Value(int64_t(*wide)) : Value(uint64_t(*wide));
    return value.as<int64_t>() || value.as<uint64_t>();
}

inline Problem check(Value& value, std::string_view kind, const std::string& path);

// Leaves unknown fields and nulls behind.
inline Problem check_record(Value& value, std::string_view fields, const std::string& path) {
    if (!value.as<Map>()) return wrong(path, "must be a map");
    Map kept;
    while (!fields.empty()) {
        const std::string_view kind = cut(fields, ' ');
        const size_t mark = kind.find_first_of("!?");
        const std::string name(kind.substr(0, mark)), at = path.empty() ? name : path + "." + name;
        const auto fits = [&](const Entry& entry) { return entry.key == name && !entry.value.is_null(); };
        const auto entry = std::find_if(value.as<Map>()->begin(), value.as<Map>()->end(), fits);
        if (entry != value.as<Map>()->end()) {
            if (Problem problem = check(entry->value, kind.substr(mark + 1), at)) return problem;
            kept.push_back(std::move(*entry));
        } else if (kind[mark] == '!') return wrong(at, "is missing");
    }
    value = std::move(kept);
    return {};
}

inline Problem check(Value& value, std::string_view kind, const std::string& path) {
    const auto must = [&](bool good, const std::string& what) {
        return good ? Problem() : wrong(path, "must be " + what);
    };
    const auto whole = [&](int64_t most) {
        return must(make_whole(value) && value.whole(-1) >= 0 && value.whole() <= most,
                    "an integer from 0 to " + std::to_string(most));
    };
    const auto number = [&](double least, double most) {
        const bool any = value.as<double>() || value.as<int64_t>() || value.as<uint64_t>();
        return must(any && value.number() >= least && value.number() <= most,
                    "a number from " + std::to_string(least) + " to " + std::to_string(most));
    };
    const auto length = [&](size_t least, size_t most) {  // in characters
        const auto begins = [](char c) { return (c & 0xc0) != 0x80; };
        const auto size = size_t(std::count_if(value.text().begin(), value.text().end(), begins));
        return must(value.as<std::string>() && size >= least && size <= most,
                    "a string of " + std::to_string(least) + " to " + std::to_string(most) + " characters");
    };
    if (kind == "any") return {};
    if (kind == "count") return whole((int64_t{1} << 53) - 1);
    if (kind == "instant") return whole(INT64_MAX);
    if (kind == "dimension") return whole(1 << 30);
    if (kind == "ms") return number(0, 1e9);
    if (kind == "hz") return number(0.001, 10000);
    if (kind == "unit") return number(0, 1);
    if (kind == "positive") return number(0, 1.7e308);
    if (kind == "real") return number(-1.7e308, 1.7e308);
    if (kind == "whole") return must(make_whole(value), "an integer of 64 bits");
    if (kind == "flag") return must(value.as<bool>(), "true or false");
    if (kind == "map") return must(value.as<Map>(), "a map");
    if (kind == "bytes") return must(value.as<Bytes>(), "bytes");
    if (kind == "token") return length(16, 128);
    if (kind == "long") return length(0, 65536);
    if (kind == "text") return length(0, kMaxStringBytes);
    if (kind == "whole_map") {
        for (Entry& entry : value.as<Map>() ? *value.as<Map>() : Map())
            if (Problem problem = check(entry.value, "whole", path + "." + entry.key)) return problem;
        return must(value.as<Map>(), "a map");
    }
    if (kind[0] == '{') {
        Problem problem = check_record(value, record(kind), path);
        if (problem || kind != "{array") return problem;
        double size = value["dtype"].text()[1] - '0';  // 2^240 items overflow any integer; equality is all that counts
        for (const Value& n : value["shape"].list()) size *= n.number();
        return must(size == double(value["data"].as<Bytes>()->size()), "as many bytes as its shape and dtype say");
    }
    if (kind[0] == '[') {
        const size_t most = bound(kind), least = bound(kind);
        List* list = value.as<List>();
        for (size_t i = 0; list && list->size() <= most && i < list->size(); i++)
            if (Problem problem = check((*list)[i], kind.substr(1), path + "[" + std::to_string(i) + "]"))
                return problem;
        return must(list && list->size() >= least && list->size() <= most,
                    "a list of " + std::to_string(least) + " to " + std::to_string(most));
    }
    if (kind.find('|') != kind.npos) {
        const std::string choices(kind);
        bool one_of_them = false;
        while (!kind.empty()) one_of_them = cut(kind, '|') == value.text() || one_of_them;
        return must(one_of_them, "one of " + choices);
    }
    const size_t most = bound(kind), least = bound(kind);  // str:LEAST:MOST
    return length(least, most);
}

// Gives each array of an observation the part that is its.
inline Problem attach(Value& message, const Parts& parts) {
    std::vector<bool> used(parts.size());
    used[0] = true;
    Value* arrays = nullptr;
    for (Entry& entry : *message.as<Map>())
        if (entry.key == "arrays" && !entry.value.is_null() && message["type"].text() == "observe")
            arrays = &entry.value;
    if (arrays && !arrays->as<List>()) return wrong("arrays", "must be a list of maps");
    for (size_t i = 0; arrays && i < arrays->list().size(); i++) {
        Value& array = (*arrays->as<List>())[i];
        if (!array.as<Map>()) return wrong("arrays", "must be a list of maps");
        Value part = array["part"];
        const uint64_t at = make_whole(part) && part.whole() > 0 ? uint64_t(part.whole()) : 0;
        if (at >= parts.size() || used[at])
            return wrong("arrays[" + std::to_string(i) + "].part", "is no part, or used twice");
        used[at] = true;
        array.set("data", Bytes(parts[at].begin(), parts[at].end()));
    }
    if (std::find(used.begin(), used.end(), false) == used.end()) return {};
    return MsgPackReader::malformed("A part belongs to no array.");
}

}  // namespace detail

// The header, and a part for each array, whose bytes are under `data`. Only checked messages are fit to be sent.
inline Parts encode(Value message) {
    Parts parts(1);
    List arrays;
    for (const Value& array : message["arrays"].list()) {
        Map entry{{"part", parts.size()}};
        const Value& data = array["data"];
        if (data.as<Bytes>()) parts.emplace_back(data.as<Bytes>()->begin(), data.as<Bytes>()->end());
        for (const Entry& field : array.map())
            if (field.key != "data" && field.key != "part") entry.push_back(field);
        arrays.push_back(std::move(entry));
    }
    if (!arrays.empty()) message.set("arrays", std::move(arrays));
    MsgPackWriter(parts[0]).write(message);
    return parts;
}

// The message of these parts, checked, without nulls and unknown fields.
inline Problem decode(const Parts& parts, Value& message) {
    size_t total = 0;
    for (const std::string& part : parts) total += part.size();
    if (parts.empty()) return MsgPackReader::malformed("There are no parts.");
    if (parts.size() > kMaxParts || total > kMaxMessageBytes)
        return Error{"too_large", "", "It has more than 8 parts, or 1048576 bytes together.", "Send less."};
    if (Problem problem = MsgPackReader::read(parts[0], message)) return problem;
    if (!message.as<Map>()) return MsgPackReader::malformed("The header is no map.");
    if (Problem problem = detail::attach(message, parts)) return problem;
    const std::string type = message["type"].text();
    const char* fields = type.empty() || type[0] == '{' ? nullptr : detail::record(type);
    if (!fields) return detail::wrong("type", "is no message of protocol 1.1");
    List version = type == "hello" ? message["protocol"].list() : List();
    bool counts = !version.empty();
    for (Value& part : version) counts = counts && detail::make_whole(part) && part.whole() >= 0;
    if (counts && !spoken(version))
        return Error{"version", "protocol", "This version is not spoken.", "Use another client or server."};
    if (Problem problem = detail::check_record(message, fields, "")) return problem;
    const bool blind = message["text"].is_null() && message["data"].is_null() && message["arrays"].list().empty();
    return type == "observe" && blind ? detail::wrong("text", "is missing, and so are data and arrays") : Problem();
}

// Through the wire and back: what a server would refuse is found before it is sent.
inline Problem checked(Value& message) { return decode(encode(message), message); }

}  // namespace rtcontrol
