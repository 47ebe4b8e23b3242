using System;
using System.Collections.Generic;
using System.Globalization;

namespace RtControl
{
    /// <summary>What a field may hold: checks a value and gives the one to keep. Throws WireException.</summary>
    internal delegate object Kind(object value, string path);

    /// <summary>Kinds of fields (docs/protocol.md, sections 2 and 4).</summary>
    internal static class Schema
    {
        public const long Most53 = (1L << 53) - 1;

        public static readonly Kind Free = (v, path) => v;
        public static readonly Kind Count = Whole(0, Most53);
        public static readonly Kind Instant = Whole(0, long.MaxValue);
        public static readonly Kind Duration = Number(0, 1e9);
        public static readonly Kind Any = Text(0, int.MaxValue);
        public static readonly Kind Token = Text(16, 128);
        public static readonly Kind AnyMap = (v, path) => v is RtMap ? v : throw Wrong(path, "must be a map");
        public static readonly Kind Bool = (v, path) => v is bool ? v : throw Wrong(path, "must be true or false");

        public static WireException Wrong(string path, string what)
        {
            return new WireException(WireException.Invalid, path, what);
        }

        /// <summary>Any integer of 64 bits; 5.0 is the integer 5.</summary>
        public static object AnyWhole(object value, string path)
        {
            if (value is long || value is ulong) return value;
            if (value is double && Math.Floor((double)value) == (double)value)
            {
                var wide = (double)value;
                // 2^63 and 2^64 as doubles: the bounds themselves are not held exactly by the integer types.
                if (wide >= -9223372036854775808.0 && wide < 9223372036854775808.0) return (long)wide;
                if (wide > 0 && wide < 18446744073709551616.0) return (ulong)wide;
            }
            throw Wrong(path, "must be an integer of 64 bits");
        }

        public static Kind Whole(long min, long max)
        {
            return (v, path) =>
            {
                object whole = AnyWhole(v, path);
                if (whole is long && (long)whole >= min && (long)whole <= max) return whole;
                throw Wrong(path, "must be an integer from " + min + " to " + max);
            };
        }

        public static Kind Number(double min, double max)
        {
            return (v, path) =>
            {
                if (v is long || v is ulong || v is double)
                {
                    double wide = v is long ? (long)v : v is ulong ? (ulong)v : (double)v;
                    if (wide >= min && wide <= max) return v;
                }
                throw Wrong(path, string.Format(CultureInfo.InvariantCulture, "must be a number from {0} to {1}", min, max));
            };
        }

        /// <summary>Lengths count characters: a surrogate pair is one.</summary>
        public static Kind Text(int min, int max)
        {
            return (v, path) =>
            {
                var text = v as string;
                if (text == null) throw Wrong(path, "must be a string");
                int length = text.Length;
                if (length > max || length < 2 * min)
                {
                    foreach (char c in text)
                        if (char.IsLowSurrogate(c)) length--;
                    if (length < min || length > max) throw Wrong(path, "is too short or too long");
                }
                return v;
            };
        }

        public static Kind OneOf(params string[] values)
        {
            return (v, path) => Array.IndexOf(values, v as string) >= 0
                ? v
                : throw Wrong(path, "must be one of " + string.Join(", ", values));
        }

        public static Kind ListOf(Kind kind, int min, int max)
        {
            return (v, path) =>
            {
                var list = v as List<object>;
                if (list == null || list.Count < min || list.Count > max)
                    throw Wrong(path, "must be a list of " + min + " to " + max);
                var kept = new List<object>(list.Count);
                for (int i = 0; i < list.Count; i++) kept.Add(kind(list[i], path + "[" + i + "]"));
                return kept;
            };
        }

        public static Kind MapOf(Kind kind)
        {
            return (v, path) =>
            {
                var kept = new RtMap();
                foreach (KeyValuePair<string, object> entry in (RtMap)AnyMap(v, path))
                    kept[entry.Key] = kind(entry.Value, path + "." + entry.Key);
                return kept;
            };
        }

        public static Kind RecordOf(Record record)
        {
            return (v, path) => record.Check((RtMap)AnyMap(v, path), path);
        }
    }

    /// <summary>A map with known fields. Unknown ones and nulls are left behind.</summary>
    internal sealed class Record
    {
        private struct Entry
        {
            public string Name;
            public Kind Kind;
            public bool Required;
            public object Otherwise;
        }

        private readonly List<Entry> _entries = new List<Entry>();

        public Record Need(string name, Kind kind)
        {
            _entries.Add(new Entry { Name = name, Kind = kind, Required = true });
            return this;
        }

        public Record May(string name, Kind kind, object otherwise = null)
        {
            _entries.Add(new Entry { Name = name, Kind = kind, Otherwise = otherwise });
            return this;
        }

        public RtMap Check(RtMap map, string path)
        {
            var kept = new RtMap();
            foreach (Entry entry in _entries)
            {
                string at = path.Length > 0 ? path + "." + entry.Name : entry.Name;
                object value = map.Get(entry.Name) ?? entry.Otherwise;
                if (value != null) kept[entry.Name] = entry.Kind(value, at);
                else if (entry.Required) throw Schema.Wrong(at, "is missing");
            }
            return kept;
        }
    }
}
