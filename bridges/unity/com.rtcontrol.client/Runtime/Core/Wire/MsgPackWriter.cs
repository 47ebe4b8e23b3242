using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Text;

namespace RtControl
{
    /// <summary>Values to msgpack. No reflection: what it takes is listed in <see cref="Write"/>.</summary>
    public sealed class MsgPackWriter
    {
        // Throws for lone surrogates, which have no UTF-8.
        private static readonly UTF8Encoding Utf8 = new UTF8Encoding(false, true);

        private byte[] _bytes = new byte[256];
        private int _length;
        private int _depth;
        private int _total;

        /// <summary>One value's bytes. Throws WireException for what cannot be sent.</summary>
        public static byte[] Pack(object value)
        {
            var writer = new MsgPackWriter();
            writer.Write(value);
            return writer.ToArray();
        }

        public byte[] ToArray()
        {
            var all = new byte[_length];
            Buffer.BlockCopy(_bytes, 0, all, 0, _length);
            return all;
        }

        public void Write(object value)
        {
            if (value == null) Byte(0xc0);
            else if (value is string) Text((string)value);
            else if (value is bool) Byte((bool)value ? (byte)0xc3 : (byte)0xc2);
            else if (value is double) Double((double)value);
            else if (value is float) Float((float)value);
            else if (value is decimal) Double((double)(decimal)value);
            else if (value is ulong) Unsigned((ulong)value);
            else if (value is long || value is int || value is short || value is sbyte || value is byte
                     || value is ushort || value is uint)
                Integer(Convert.ToInt64(value, CultureInfo.InvariantCulture));
            else if (value is IDictionary) Map((IDictionary)value);
            else if (value is IList && !(value is byte[])) List((IList)value);
            else throw new WireException(WireException.Malformed, null, value.GetType().Name + " cannot be sent");
        }

        private void Text(string text)
        {
            byte[] bytes;
            try
            {
                bytes = Utf8.GetBytes(text);
            }
            catch (EncoderFallbackException)
            {
                throw new WireException(WireException.Malformed, null, "a lone surrogate");
            }
            int n = bytes.Length;
            if (n > RtLimits.MaxStringBytes) throw Large("a string of " + n + " bytes: " + RtLimits.MaxStringBytes);
            if (n < 32) Byte((byte)(0xa0 | n));
            else if (n < 256) Head(0xd9, (ulong)n, 1);
            else Head(n < 65536 ? (byte)0xda : (byte)0xdb, (ulong)n, n < 65536 ? 2 : 4);
            Raw(bytes);
        }

        // The shortest decimal that means this float: 0.1f is to be read as 0.1, not as 0.10000000149011612.
        private void Float(float value)
        {
            string text = value.ToString("R", CultureInfo.InvariantCulture);
            double wide;
            bool read = double.TryParse(text, NumberStyles.Float, CultureInfo.InvariantCulture, out wide);
            Double(read ? wide : value);
        }

        private void Double(double value)
        {
            if (double.IsNaN(value) || double.IsInfinity(value))
                throw new WireException(WireException.Invalid, null, "a number that is not finite");
            Head(0xcb, (ulong)BitConverter.DoubleToInt64Bits(value), 8);
        }

        private void Integer(long value)
        {
            if (value >= 0) Unsigned((ulong)value);
            else if (value >= -32) Byte((byte)value);
            else if (value >= sbyte.MinValue) Head(0xd0, (ulong)value, 1);
            else if (value >= short.MinValue) Head(0xd1, (ulong)value, 2);
            else if (value >= int.MinValue) Head(0xd2, (ulong)value, 4);
            else Head(0xd3, (ulong)value, 8);
        }

        private void Unsigned(ulong value)
        {
            if (value < 128) Byte((byte)value);
            else if (value <= byte.MaxValue) Head(0xcc, value, 1);
            else if (value <= ushort.MaxValue) Head(0xcd, value, 2);
            else if (value <= uint.MaxValue) Head(0xce, value, 4);
            else Head(0xcf, value, 8);
        }

        private void Map(IDictionary map)
        {
            Open(map.Count, 0x80, 0xde);
            foreach (DictionaryEntry entry in map)
            {
                var key = entry.Key as string;
                if (key == null) throw new WireException(WireException.Malformed, null, "a map key is no string");
                Text(key);
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
            _depth--;
        }

        private void List(IList list)
        {
            Open(list.Count, 0x90, 0xdc);
            for (int i = 0; i < list.Count; i++)
            {
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
            _depth--;
        }

        private void Open(int count, byte small, byte large)
        {
            _total += count;
            if (++_depth > RtLimits.MaxDepth || count > RtLimits.MaxItems || _total > RtLimits.MaxTotalItems)
                throw Large("nested " + _depth + " deep, with " + count + " items, " + _total + " in all: " + RtLimits.MaxDepth
                    + ", " + RtLimits.MaxItems + " and " + RtLimits.MaxTotalItems);
            if (count < 16) Byte((byte)(small | count));
            else Head(large, (ulong)count, 2);
        }

        private static WireException Large(string what)
        {
            return new WireException(WireException.TooLarge, null, what + " at most");
        }

        private void Head(byte code, ulong value, int size)
        {
            Byte(code);
            for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) Byte((byte)(value >> shift));
        }

        private void Byte(byte value)
        {
            Grow(1);
            _bytes[_length++] = value;
        }

        private void Raw(byte[] bytes)
        {
            Grow(bytes.Length);
            Buffer.BlockCopy(bytes, 0, _bytes, _length, bytes.Length);
            _length += bytes.Length;
        }

        private void Grow(int by)
        {
            if (_length + by > _bytes.Length) Array.Resize(ref _bytes, Math.Max(2 * _bytes.Length, _length + by));
        }
    }
}
