using System;
using System.Collections;
using System.Globalization;
using System.Text;

namespace RtControl
{
    /// <summary>Values to JSON. It takes what <see cref="MsgPackWriter"/> takes, within the same limits.</summary>
    public sealed class JsonWriter
    {
        private static readonly UTF8Encoding Utf8 = new UTF8Encoding(false, true);

        private readonly StringBuilder _text = new StringBuilder(256);
        private int _depth;
        private int _total;

        /// <summary>One value as UTF-8. Throws WireException for what cannot be sent.</summary>
        public static byte[] Text(object value)
        {
            var writer = new JsonWriter();
            writer.Write(value);
            return Utf8.GetBytes(writer._text.ToString());
        }

        private void Write(object value)
        {
            if (value == null) _text.Append("null");
            else if (value is string) Quote((string)value);
            else if (value is bool) _text.Append((bool)value ? "true" : "false");
            else if (value is double) Double((double)value);
            // The shortest decimal that means this float.
            else if (value is float) Finite((float)value, ((float)value).ToString("R", CultureInfo.InvariantCulture));
            else if (value is decimal) Double((double)(decimal)value);
            else if (value is long || value is ulong || value is int || value is short || value is sbyte || value is byte
                     || value is ushort || value is uint)
                _text.Append(Convert.ToString(value, CultureInfo.InvariantCulture));
            else if (value is BufferText) _text.Append('"').Append(((BufferText)value).Base64).Append('"');
            else if (value is IDictionary) Map((IDictionary)value);
            else if (value is IList && !(value is byte[])) List((IList)value);
            else throw new WireException(WireException.Malformed, null, value.GetType().Name + " cannot be sent");
        }

        private void Double(double value)
        {
            Finite(value, value.ToString("R", CultureInfo.InvariantCulture));
        }

        private void Finite(double value, string text)
        {
            if (double.IsNaN(value) || double.IsInfinity(value))
                throw new WireException(WireException.Invalid, null, "a number that is not finite");
            _text.Append(text);
        }

        private void Map(IDictionary map)
        {
            Open(map.Count, '{');
            foreach (DictionaryEntry entry in map)
            {
                var key = entry.Key as string;
                if (key == null) throw new WireException(WireException.Malformed, null, "a map key is no string");
                if (_text[_text.Length - 1] != '{') _text.Append(',');
                Quote(key);
                _text.Append(':');
                try
                {
                    Write(entry.Value);
                }
                catch (WireException error)
                {
                    error.Within(key);
                    throw;
                }
            }
            _text.Append('}');
            _depth--;
        }

        private void List(IList list)
        {
            Open(list.Count, '[');
            for (int i = 0; i < list.Count; i++)
            {
                if (i > 0) _text.Append(',');
                try
                {
                    Write(list[i]);
                }
                catch (WireException error)
                {
                    error.Within("[" + i + "]");
                    throw;
                }
            }
            _text.Append(']');
            _depth--;
        }

        private void Open(int count, char begin)
        {
            _total += count;
            if (++_depth > RtLimits.MaxDepth || count > RtLimits.MaxItems || _total > RtLimits.MaxTotalItems)
                throw new WireException(WireException.TooLarge, null, "nested " + _depth + " deep, with " + count + " items, " + _total
                    + " in all: " + RtLimits.MaxDepth + ", " + RtLimits.MaxItems + " and " + RtLimits.MaxTotalItems + " at most");
            _text.Append(begin);
        }

        private void Quote(string text)
        {
            int bytes;
            try
            {
                bytes = Utf8.GetByteCount(text);
            }
            catch (EncoderFallbackException)
            {
                throw new WireException(WireException.Malformed, null, "a lone surrogate");
            }
            if (bytes > RtLimits.MaxStringBytes)
                throw new WireException(WireException.TooLarge, null, "a string of " + bytes + " bytes: " + RtLimits.MaxStringBytes + " at most");
            _text.Append('"');
            foreach (char c in text)
            {
                if (c == '"' || c == '\\') _text.Append('\\').Append(c);
                else if (c < ' ') _text.Append("\\u").Append(((int)c).ToString("x4", CultureInfo.InvariantCulture));
                else _text.Append(c);
            }
            _text.Append('"');
        }

        /// <summary>An array's bytes, in their place within the text.</summary>
        internal sealed class BufferText
        {
            public readonly string Base64;

            public BufferText(byte[] bytes)
            {
                Base64 = Convert.ToBase64String(bytes);
            }
        }
    }
}
