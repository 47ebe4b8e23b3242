// What the package's own tests use of NUnit; failing asserts throw.
using System;
using System.Collections;

namespace NUnit.Framework
{
    public sealed class TestAttribute : Attribute
    {
    }

    public static class Assert
    {
        public static void AreEqual(object wanted, object found)
        {
            var map = wanted as IDictionary;
            bool equal = map == null ? Equals(wanted, found) : map.Count == ((IDictionary)found).Count;
            if (map != null)
                foreach (DictionaryEntry entry in map) equal &= Equals(entry.Value, ((IDictionary)found)[entry.Key]);
            That(equal, wanted + " wanted, not " + found);
        }

        public static void Greater(long one, long two)
        {
            That(one > two, one + " <= " + two);
        }

        public static void GreaterOrEqual(long one, long two)
        {
            That(one >= two, one + " < " + two);
        }

        public static void Less(long one, long two)
        {
            That(one < two, one + " >= " + two);
        }

        public static void IsNotNull(object one)
        {
            That(one != null, "null");
        }

        private static void That(bool holds, string otherwise)
        {
            if (!holds) throw new Exception(otherwise);
        }
    }
}
