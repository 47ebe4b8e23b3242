using System.Collections.Generic;

namespace RtControl
{
    /// <summary>
    /// A map of the protocol. Values: null, bool, long, ulong (above long.MaxValue), double, string, List&lt;object&gt;,
    /// RtMap. When it is sent, all of C#'s number types, arrays, lists and dictionaries will do.
    /// </summary>
    public sealed class RtMap : Dictionary<string, object>
    {
        /// <summary>The value, or null where it is absent.</summary>
        public object Get(string key)
        {
            object value;
            return TryGetValue(key, out value) ? value : null;
        }

        public string Text(string key, string otherwise = null)
        {
            return Get(key) as string ?? otherwise;
        }

        public RtMap Map(string key)
        {
            return Get(key) as RtMap;
        }

        public List<object> List(string key)
        {
            return Get(key) as List<object>;
        }

        public bool Bool(string key, bool otherwise = false)
        {
            object value = Get(key);
            return value is bool ? (bool)value : otherwise;
        }

        public long Long(string key, long otherwise = 0)
        {
            object value = Get(key);
            if (value is long) return (long)value;
            return value is double ? (long)(double)value : otherwise;
        }

        public double Number(string key, double otherwise = 0)
        {
            object value = Get(key);
            if (value is double) return (double)value;
            if (value is long) return (long)value;
            return value is ulong ? (ulong)value : otherwise;
        }

        /// <summary>Sets the key where there is a value: in messages, null is absent.</summary>
        public RtMap With(string key, object value)
        {
            if (value != null) this[key] = value;
            return this;
        }
    }
}
