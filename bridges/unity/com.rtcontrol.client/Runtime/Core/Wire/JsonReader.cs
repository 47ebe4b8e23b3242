using System;
using System.Collections.Generic;
using System.Globalization;
using System.Text;

namespace RtControl
{
    /// <summary>
    /// JSON (RFC 8259, UTF-8) to the values of <see cref="RtMap"/>, with the caps of <see cref="RtLimits"/>. Strict: no
    /// comments, no key twice, nothing behind the value, no number beyond 64 bits or a double.
    /// </summary>
    public sealed class JsonReader
    {
        /// <summary>Of an array's map: its string may be as long as a message.</summary>
        internal const string Base64 = "base64";

        private const int LongestNumber = 1024;
        private static readonly UTF8Encoding Utf8 = new UTF8Encoding(false, true);

        private readonly byte[] _bytes;
        private int _at;
        private int _total;

        private JsonReader(byte[] bytes)
        {
            _bytes = bytes;
        }

        /// <summary>The one value that the text is. Throws WireException.</summary>
        public static object Read(byte[] text)
        {
            var reader = new JsonReader(text);
            object value = reader.Value(1, false);
            reader.Blank();
            if (reader._at != text.Length) throw Malformed("something follows the value");
            return value;
        }

        private object Value(int depth, bool bytes)
        {
            Blank();
            int c = Peek();
            if (c == '{') return Map(depth);
            if (c == '[') return List(depth);
            if (c == '"') return Text(bytes);
            if (c == '-' || c >= '0' && c <= '9') return Number();
            if (Word("true")) return true;
            if (Word("false")) return false;
            if (Word("null")) return null;
            if (Word("NaN") || Word("Infinity")) throw NotFinite();
            throw Malformed(c < 0 ? "it ends in the middle" : "no JSON at byte " + _at);
        }

        private RtMap Map(int depth)
        {
            Deeper(depth);
            var map = new RtMap();
            for (bool first = true; Another('}', first); first = false)
            {
                if (Peek() != '"') throw Malformed("a map key is no string");
                string key = (string)Text(false);
                Blank();
                if (Peek() != ':') throw Malformed("a key without a value");
                _at++;
                if (map.ContainsKey(key)) throw Malformed("the key " + key + " comes twice");
                Counted(map.Count + 1);
                try
                {
                    map[key] = Value(depth + 1, depth == 3 && key == Base64);
                }
                catch (WireException error)
                {
                    if (error.Code != WireException.Malformed) error.Within(key);
                    throw;
                }
            }
            return map;
        }

        private List<object> List(int depth)
        {
            Deeper(depth);
            var list = new List<object>();
            for (bool first = true; Another(']', first); first = false)
            {
                Counted(list.Count + 1);
                try
                {
                    list.Add(Value(depth + 1, false));
                }
                catch (WireException error)
                {
                    if (error.Code != WireException.Malformed) error.Within("[" + list.Count + "]");
                    throw;
                }
            }
            return list;
        }

        /// <summary>Whether an entry follows; else the end is behind us.</summary>
        private bool Another(char end, bool first)
        {
            if (first) _at++;
            Blank();
            if (Peek() == end && (first || _bytes[_at] == end))
            {
                _at++;
                return false;
            }
            if (first) return true;
            if (Peek() != ',') throw Malformed("no comma between two values");
            _at++;
            Blank();
            return true;
        }

        private void Deeper(int depth)
        {
            if (depth > RtLimits.MaxDepth) throw Large("nested too deep");
        }

        private void Counted(int count)
        {
            if (count > RtLimits.MaxItems) throw Large("a list or map too long");
            if (++_total > RtLimits.MaxTotalItems) throw Large("too many items together");
        }

        private object Text(bool bytes)
        {
            int from = ++_at;
            while (_at < _bytes.Length && _bytes[_at] != '"' && _bytes[_at] != '\\' && _bytes[_at] >= ' ') _at++;
            byte[] held = _bytes;
            int length = _at - from;
            if (Peek() == '\\')
            {
                held = Unescaped(from, out length);
                from = 0;
            }
            if (Peek() != '"') throw Malformed(_at < _bytes.Length ? "a control character in a string" : "it ends in the middle");
            _at++;
            if (!bytes && length > RtLimits.MaxStringBytes) throw Large("a string too long");
            try
            {
                return Utf8.GetString(held, from, length);
            }
            catch (ArgumentException)
            {
                throw Malformed("a string that is not UTF-8");
            }
        }

        private byte[] Unescaped(int from, out int length)
        {
            // An escape is never shorter than what it means.
            int end = _at;
            while (end < _bytes.Length && _bytes[end] != '"' && _bytes[end] >= ' ') end += _bytes[end] == '\\' ? 2 : 1;
            var to = new byte[Math.Min(end, _bytes.Length) - from];
            length = _at - from;
            Buffer.BlockCopy(_bytes, from, to, 0, length);
            while (_at < _bytes.Length && _bytes[_at] != '"' && _bytes[_at] >= ' ')
            {
                byte c = _bytes[_at++];
                if (c != '\\')
                {
                    to[length++] = c;
                    continue;
                }
                int meant = "\"\\/bfnrtu".IndexOf((char)(_at < _bytes.Length ? _bytes[_at] : (byte)0));
                if (meant < 0) throw Malformed("an escape that JSON has not");
                _at++;
                if (meant < 8) to[length++] = (byte)"\"\\/\b\f\n\r\t"[meant];
                else length += Escaped(to, length);
            }
            return to;
        }

        private int Escaped(byte[] to, int at)
        {
            int unit = Hex4();
            if (unit >= 0xdc00 && unit <= 0xdfff) throw Malformed("a lone surrogate");
            if (unit >= 0xd800 && unit <= 0xdbff)
            {
                bool another = _at + 1 < _bytes.Length && _bytes[_at] == '\\' && _bytes[_at + 1] == 'u';
                _at += 2;
                int low = another ? Hex4() : 0;
                if (low < 0xdc00 || low > 0xdfff) throw Malformed("a lone surrogate");
                unit = 0x10000 + (unit - 0xd800 << 10) + (low - 0xdc00);
            }
            string text = char.ConvertFromUtf32(unit);
            return Utf8.GetBytes(text, 0, text.Length, to, at);
        }

        private int Hex4()
        {
            var unit = 0;
            for (var i = 0; i < 4; i++)
            {
                int c = Peek();
                int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
                if (digit < 0) throw Malformed("an escape without four digits");
                unit = unit << 4 | digit;
                _at++;
            }
            return unit;
        }

        private object Number()
        {
            int from = _at;
            bool below = Peek() == '-';
            if (below) _at++;
            if (below && Word("Infinity")) throw NotFinite();
            int first = Peek(), digits = Digits();
            if (digits == 0 || first == '0' && digits > 1) throw Malformed("a number that JSON has not");
            bool whole = true;
            if (Peek() == '.')
            {
                _at++;
                whole = false;
                if (Digits() == 0) throw Malformed("a number that ends in a point");
            }
            if (Peek() == 'e' || Peek() == 'E')
            {
                _at++;
                whole = false;
                if (Peek() == '+' || Peek() == '-') _at++;
                if (Digits() == 0) throw Malformed("a number without its exponent");
            }
            if (_at - from > LongestNumber) throw Wrong("a number of " + (_at - from) + " characters");
            string text = Encoding.ASCII.GetString(_bytes, from, _at - from);
            long small;
            ulong large;
            double wide;
            if (!whole)
            {
                if (!double.TryParse(text, NumberStyles.Float, CultureInfo.InvariantCulture, out wide) || double.IsInfinity(wide)) throw NotFinite();
                return wide;
            }
            if (long.TryParse(text, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out small)) return small;
            if (ulong.TryParse(text, NumberStyles.None, CultureInfo.InvariantCulture, out large)) return large;
            throw Wrong("an integer beyond 64 bits");
        }

        private int Digits()
        {
            int from = _at;
            while (_at < _bytes.Length && _bytes[_at] >= '0' && _bytes[_at] <= '9') _at++;
            return _at - from;
        }

        private bool Word(string word)
        {
            for (var i = 0; i < word.Length; i++)
                if (_at + i >= _bytes.Length || _bytes[_at + i] != word[i]) return false;
            _at += word.Length;
            return true;
        }

        private void Blank()
        {
            while (_at < _bytes.Length && (_bytes[_at] == ' ' || _bytes[_at] == '\t' || _bytes[_at] == '\n' || _bytes[_at] == '\r')) _at++;
        }

        /// <summary>The next byte; -1 at the end.</summary>
        private int Peek()
        {
            return _at < _bytes.Length ? _bytes[_at] : -1;
        }

        private static WireException NotFinite()
        {
            return Wrong("a number that is not finite");
        }

        private static WireException Wrong(string what)
        {
            return new WireException(WireException.Invalid, null, what);
        }

        private static WireException Malformed(string what)
        {
            return new WireException(WireException.Malformed, null, what);
        }

        private static WireException Large(string what)
        {
            return new WireException(WireException.TooLarge, null, what);
        }
    }
}
