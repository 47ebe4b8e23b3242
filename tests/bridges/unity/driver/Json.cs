using System;
using System.Collections;
using System.Globalization;
using System.Text;

namespace RtControl.Driver
{
    /// <summary>Writes values as JSON text and bytes as hex.</summary>
    internal static class Json
    {
        public static string Text(object value)
        {
            var text = new StringBuilder();
            Write(text, value);
            return text.ToString();
        }

        private static void Write(StringBuilder text, object value)
        {
            if (value == null) text.Append("null");
            else if (value is string) Quote(text, (string)value);
            else if (value is bool) text.Append((bool)value ? "true" : "false");
            else if (value is byte[]) Quote(text, Hex.Of((byte[])value));
            else if (value is double) text.Append(double.IsNaN((double)value) ? "null" : ((double)value).ToString("R", CultureInfo.InvariantCulture));
            else if (value is IDictionary)
            {
                text.Append('{');
                foreach (DictionaryEntry entry in (IDictionary)value)
                {
                    if (text[text.Length - 1] != '{') text.Append(',');
                    Quote(text, (string)entry.Key);
                    text.Append(':');
                    Write(text, entry.Value);
                }
                text.Append('}');
            }
            else if (value is IList)
            {
                text.Append('[');
                foreach (object item in (IList)value)
                {
                    if (text[text.Length - 1] != '[') text.Append(',');
                    Write(text, item);
                }
                text.Append(']');
            }
            else text.Append(Convert.ToString(value, CultureInfo.InvariantCulture));
        }

        // Escape everything but ASCII, so that the console's encoding does not matter.
        private static void Quote(StringBuilder text, string value)
        {
            text.Append('"');
            foreach (char c in value)
                if (c < ' ' || c > '~' || c == '"' || c == '\\') text.Append("\\u").Append(((int)c).ToString("x4"));
                else text.Append(c);
            text.Append('"');
        }
    }

    internal static class Hex
    {
        public static string Of(byte[] bytes)
        {
            return BitConverter.ToString(bytes).Replace("-", "").ToLowerInvariant();
        }

        public static byte[] Bytes(string hex)
        {
            var bytes = new byte[hex.Length / 2];
            for (var i = 0; i < bytes.Length; i++) bytes[i] = (byte)(Digit(hex[2 * i]) << 4 | Digit(hex[2 * i + 1]));
            return bytes;
        }

        private static int Digit(char c)
        {
            return c <= '9' ? c - '0' : c - 'a' + 10;
        }
    }
}
