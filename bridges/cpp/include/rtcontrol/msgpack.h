// msgpack to values and back, with the protocol's limits (section 10) in force before anything is allocated.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include "value.h"

namespace rtcontrol {

constexpr size_t kMaxParts = 8, kMaxMessageBytes = 1048576, kMaxDepth = 16, kMaxStringBytes = 65536, kMaxItems = 4096,
                 kMaxTotalItems = 16384;

// Strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
inline bool is_utf8(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
        const auto lead = uint8_t(text[i++]);
        if (lead < 0x80) continue;
        const size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        if (lead < 0xc2 || lead > 0xf4 || text.size() - i < more) return false;
        for (size_t k = 0; k < more; k++) {
            const auto next = uint8_t(text[i++]);
            const int low = k > 0 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
            const int high = k > 0 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
            if (next < low || next > high) return false;
        }
    }
    return true;
}

// Appends a value. What the protocol does not allow is found when it is read again: checked() in messages.h does.
class MsgPackWriter {
 public:
    explicit MsgPackWriter(std::string& out) : out_(out) {}
    void write(const Value& value) {
        std::visit([this](const auto& held) { put(held); }, value.data);
    }

 private:
    void put(std::monostate) { byte(0xc0); }
    void put(bool flag) { byte(flag ? 0xc3 : 0xc2); }
    void put(uint64_t whole) { big(0xcf, whole, 8); }
    void put(int64_t whole) {
        if (whole >= -32 && whole < 128) byte(uint64_t(whole));
        else if (whole >= 0) sized(uint64_t(whole), 0xcc);
        else big(0xd3, uint64_t(whole), 8);
    }
    void put(double number) {
        uint64_t bits;
        std::memcpy(&bits, &number, 8);
        big(0xcb, bits, 8);
    }
    void put(const std::string& text) {
        if (text.size() < 32) byte(0xa0 | text.size());
        else sized(text.size(), 0xd9);
        out_ += text;
    }
    void put(const Bytes& bytes) { sized(bytes.size(), 0xc4); }  // refused by whoever reads it
    void put(const List& list) {
        counted(list.size(), 0x90, 0xdc);
        for (const Value& one : list) write(one);
    }
    void put(const Map& map) {
        counted(map.size(), 0x80, 0xde);
        for (const Entry& entry : map) put(entry.key), write(entry.value);
    }
    void byte(uint64_t code) { out_ += char(code & 0xff); }
    void big(uint64_t code, uint64_t bits, int size) {
        byte(code);
        while (size-- > 0) byte(bits >> (8 * size));
    }
    void sized(uint64_t bits, uint64_t code) {  // in 1, 2, 4 or 8 bytes, whose codes follow one another
        if (bits <= 0xff) big(code, bits, 1);
        else if (bits <= 0xffff) big(code + 1, bits, 2);
        else if (bits <= 0xffffffff) big(code + 2, bits, 4);
        else big(code + 3, bits, 8);
    }
    void counted(uint64_t count, uint64_t few, uint64_t many) {
        if (count < 16) byte(few | count);
        else if (count <= 0xffff) big(many, count, 2);
        else big(many + 1, count, 4);
    }
    std::string& out_;
};

// The one value that the bytes are.
class MsgPackReader {
 public:
    static Problem read(std::string_view bytes, Value& value) {
        MsgPackReader reader(bytes);
        if (!reader.next(value, 1)) return std::move(reader.error_);
        return reader.at_ == bytes.size() ? Problem() : malformed("There are bytes after the value.");
    }
    static Error malformed(const std::string& what) { return {"malformed", "", what, "Correct the encoder."}; }

 private:
    explicit MsgPackReader(std::string_view bytes) : bytes_(bytes) {}
    bool next(Value& value, size_t depth) {
        uint64_t code, bits;
        if (!big(1, code)) return false;
        if (code < 0x80) return keep(value, int64_t(code));
        if (code < 0x90) return map(value, code & 0x0f, depth);
        if (code < 0xa0) return list(value, code & 0x0f, depth);
        if (code < 0xc0) return text(value, code & 0x1f);
        if (code >= 0xe0) return keep(value, int64_t(int8_t(code)));
        if (code == 0xc0) return keep(value, std::monostate{});
        if (code == 0xc2 || code == 0xc3) return keep(value, code == 0xc3);
        if (code == 0xca) return big(4, bits) && number(value, from<float>(uint32_t(bits)));
        if (code == 0xcb) return big(8, bits) && number(value, from<double>(bits));
        if (code >= 0xcc && code <= 0xcf) return big(1u << (code - 0xcc), bits) && keep(value, Value(bits).data);
        if (code >= 0xd0 && code <= 0xd3) {
            const size_t size = 1u << (code - 0xd0);
            const uint64_t sign = uint64_t{1} << (8 * size - 1);
            return big(size, bits) && keep(value, int64_t((bits ^ sign) - sign));
        }
        if (code >= 0xd9 && code <= 0xdb) return big(1u << (code - 0xd9), bits) && text(value, bits);
        if (code == 0xdc || code == 0xdd) return big(code == 0xdc ? 2 : 4, bits) && list(value, bits, depth);
        if (code == 0xde || code == 0xdf) return big(code == 0xde ? 2 : 4, bits) && map(value, bits, depth);
        return fail(malformed("There are binary values, extensions or a reserved byte."));
    }
    bool list(Value& value, uint64_t count, size_t depth) {
        if (!open(count, depth)) return false;
        List found;
        for (uint64_t i = 0; i < count; i++)
            if (!next(found.emplace_back(), depth + 1)) return within("[" + std::to_string(i) + "]");
        return keep(value, std::move(found));
    }
    bool map(Value& value, uint64_t count, size_t depth) {
        if (!open(count, depth)) return false;
        Map found;
        for (uint64_t i = 0; i < count; i++) {
            const int code = at_ < bytes_.size() ? uint8_t(bytes_[at_]) : 0xa0;
            if ((code < 0xa0 || code > 0xbf) && (code < 0xd9 || code > 0xdb))
                return fail(malformed("A key is no string."));
            Value key;
            if (!next(key, depth)) return false;
            found.push_back({std::move(*key.as<std::string>()), {}});
            if (!next(found.back().value, depth + 1)) return within(found.back().key);
        }
        std::vector<std::string_view> keys;
        for (const Entry& entry : found) keys.push_back(entry.key);
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end()) return fail(malformed("The key " + std::string(*twice) + " comes twice in a map."));
        return keep(value, std::move(found));
    }
    bool text(Value& value, uint64_t size) {
        if (size > bytes_.size() - at_) return fail(malformed("It ends in the middle."));
        if (size > kMaxStringBytes) return large("A string is longer than 65536 bytes.");
        const std::string_view found = bytes_.substr(at_, size);
        at_ += size;
        return is_utf8(found) ? keep(value, std::string(found)) : fail(malformed("A string is not UTF-8."));
    }
    bool number(Value& value, double found) {
        return std::isfinite(found) ? keep(value, found)
                                    : fail({"invalid", "", "It is not finite.", "Give a finite number."});
    }
    bool open(uint64_t count, size_t depth) {
        if (depth > kMaxDepth) return large("It is nested deeper than 16.");
        if (count <= kMaxItems && (total_ += count) <= kMaxTotalItems) return true;
        return large("There are more than 4096 items in a list or map, or 16384 together.");
    }
    bool big(size_t size, uint64_t& bits) {
        if (size > bytes_.size() - at_) return fail(malformed("It ends in the middle."));
        for (bits = 0; size > 0; size--) bits = bits << 8 | uint8_t(bytes_[at_++]);
        return true;
    }
    template <class T, class Bits> static T from(Bits bits) {
        T number;
        static_assert(sizeof number == sizeof bits);
        std::memcpy(&number, &bits, sizeof bits);
        return number;
    }
    template <class T> static bool keep(Value& value, T found) { return value.data = std::move(found), true; }
    bool large(const char* what) { return fail({"too_large", "", what, "Send less."}); }
    bool fail(Error error) { return error_ = std::move(error), false; }
    bool within(const std::string& key) {
        error_.field = key + (error_.field.empty() || error_.field[0] == '[' ? "" : ".") + error_.field;
        return false;
    }
    std::string_view bytes_;
    size_t at_ = 0;
    uint64_t total_ = 0;
    Error error_;
};

}  // namespace rtcontrol
