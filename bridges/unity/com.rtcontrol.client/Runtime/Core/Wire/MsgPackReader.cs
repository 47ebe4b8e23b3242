using System;
using System.Collections.Generic;
using System.Text;

namespace RtControl
{
    /// <summary>msgpack to values, with the caps of <see cref="RtLimits"/> in force before anything is allocated.</summary>
    public sealed class MsgPackReader
    {
        private static readonly UTF8Encoding Utf8 = new UTF8Encoding(false, true);

        private readonly byte[] _bytes;
        private int _at;
        private int _total;

        private MsgPackReader(byte[] bytes)
        {
            _bytes = bytes;
        }

        /// <summary>The one value that the bytes are. Throws WireException.</summary>
        public static object Unpack(byte[] bytes)
        {
            var reader = new MsgPackReader(bytes);
            object value = reader.Read(1);
            if (reader._at != bytes.Length) throw Malformed("bytes after the value");
            return value;
        }

        private object Read(int depth)
        {
            byte code = (byte)Big(1);
            if (code < 0x80) return (long)code;
            if (code < 0x90) return Map(code & 0x0f, depth);
            if (code < 0xa0) return List(code & 0x0f, depth);
            if (code < 0xc0) return Text((ulong)(code & 0x1f));
            if (code >= 0xe0) return (long)(sbyte)code;
            switch (code)
            {
                case 0xc0: return null;
                case 0xc2: return false;
                case 0xc3: return true;
                case 0xca: return Finite(BitConverter.ToSingle(BitConverter.GetBytes((uint)Big(4)), 0));
                case 0xcb: return Finite(BitConverter.Int64BitsToDouble((long)Big(8)));
                case 0xcc: return (long)Big(1);
                case 0xcd: return (long)Big(2);
                case 0xce: return (long)Big(4);
                case 0xcf: return Slim(Big(8));
                case 0xd0: return (long)(sbyte)Big(1);
                case 0xd1: return (long)(short)Big(2);
                case 0xd2: return (long)(int)Big(4);
                case 0xd3: return (long)Big(8);
                case 0xd9: return Text(Big(1));
                case 0xda: return Text(Big(2));
                case 0xdb: return Text(Big(4));
                case 0xdc: return List(Big(2), depth);
                case 0xdd: return List(Big(4), depth);
                case 0xde: return Map(Big(2), depth);
                case 0xdf: return Map(Big(4), depth);
                default: throw Malformed("bin, ext or reserved byte 0x" + code.ToString("x2"));
            }
        }

        private RtMap Map(long count, int depth)
        {
            return Map((ulong)count, depth);
        }

        private RtMap Map(ulong count, int depth)
        {
            Open(count, depth);
            var map = new RtMap();
            for (ulong i = 0; i < count; i++)
            {
                byte code = _at < _bytes.Length ? _bytes[_at] : (byte)0xa0;
                if ((code < 0xa0 || code > 0xbf) && (code < 0xd9 || code > 0xdb))
                    throw Malformed("a map key is no string");
                var key = (string)Read(depth);
                if (map.ContainsKey(key)) throw Malformed("the key " + key + " comes twice");
                try
                {
                    map[key] = Read(depth + 1);
                }
                catch (WireException error)
                {
                    error.Within(key);
                    throw;
                }
            }
            return map;
        }

        private List<object> List(long count, int depth)
        {
            return List((ulong)count, depth);
        }

        private List<object> List(ulong count, int depth)
        {
            Open(count, depth);
            var list = new List<object>();
            for (ulong i = 0; i < count; i++)
            {
                try
                {
                    list.Add(Read(depth + 1));
                }
                catch (WireException error)
                {
                    error.Within("[" + i + "]");
                    throw;
                }
            }
            return list;
        }

        private void Open(ulong count, int depth)
        {
            if (depth > RtLimits.MaxDepth) throw Large("nested too deep");
            if (count > RtLimits.MaxItems) throw Large("a list or map too long");
            _total += (int)count;
            if (_total > RtLimits.MaxTotalItems) throw Large("too many items together");
        }

        private string Text(ulong length)
        {
            if (length > (ulong)(_bytes.Length - _at)) throw Malformed("it ends in the middle");
            if (length > RtLimits.MaxStringBytes) throw Large("a string too long");
            int n = Take((int)length);
            try
            {
                return Utf8.GetString(_bytes, n, (int)length);
            }
            catch (ArgumentException)
            {
                throw Malformed("a string that is not UTF-8");
            }
        }

        private ulong Big(int size)
        {
            int at = Take(size);
            ulong value = 0;
            for (int i = 0; i < size; i++) value = value << 8 | _bytes[at + i];
            return value;
        }

        private int Take(int size)
        {
            if (size > _bytes.Length - _at) throw Malformed("it ends in the middle");
            int at = _at;
            _at += size;
            return at;
        }

        private static object Finite(double value)
        {
            if (double.IsNaN(value) || double.IsInfinity(value))
                throw new WireException(WireException.Invalid, null, "a number that is not finite");
            return value;
        }

        private static object Slim(ulong value)
        {
            return value <= long.MaxValue ? (object)(long)value : value;
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
