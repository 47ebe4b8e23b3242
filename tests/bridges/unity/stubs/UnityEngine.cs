// The part of Unity's API that the package uses, so that mcs checks names and types, and a frame loop with Unity's
// callbacks. This stub does not show what Unity itself does with the package.
using System;
using System.Collections.Generic;
using System.Reflection;
using RtControl;

namespace UnityEngine
{
    public class Object
    {
    }

    public class Component : Object
    {
        public GameObject gameObject;

        public Transform transform { get { return gameObject.transform; } }

        public T[] GetComponents<T>() where T : class
        {
            var found = new List<T>();
            foreach (object component in gameObject.Components)
                if (component is T) found.Add((T)component);
            return found.ToArray();
        }
    }

    public class Behaviour : Component
    {
        private bool _enabled = true;

        public bool enabled
        {
            get { return _enabled; }
            set
            {
                bool before = _enabled;
                _enabled = value;
                if (before != value) Engine.Tell(this, value ? "OnEnable" : "OnDisable");
            }
        }
    }

    public class MonoBehaviour : Behaviour
    {
    }

    public class Transform : Component
    {
        public Vector3 position, localScale;

        public Vector3 InverseTransformPoint(Vector3 point)
        {
            return new Vector3(point.x - position.x, point.y - position.y, point.z - position.z);
        }

        public void Rotate(float x, float y, float z)
        {
        }

        public void Translate(float x, float y, float z)
        {
            position = new Vector3(position.x + x, position.y + y, position.z + z);
        }
    }

    public struct Vector3
    {
        public float x, y, z;

        public Vector3(float x, float y, float z)
        {
            this.x = x;
            this.y = y;
            this.z = z;
        }

        public float magnitude { get { return (float)Math.Sqrt(x * x + y * y + z * z); } }
    }

    public static class Mathf
    {
        public const float Rad2Deg = 57.29578f;

        public static float Atan2(float y, float x)
        {
            return (float)Math.Atan2(y, x);
        }
    }

    public enum PrimitiveType
    {
        Plane,
        Sphere,
        Cube,
    }

    public sealed class GameObject : Object
    {
        public readonly List<Component> Components = new List<Component>();
        private bool _active = true;

        public GameObject()
        {
            transform = AddComponent<Transform>();
            Engine.Objects.Add(this);
        }

        public Transform transform { get; private set; }

        public static GameObject CreatePrimitive(PrimitiveType type)
        {
            return new GameObject();
        }

        public T AddComponent<T>() where T : Component, new()
        {
            var component = new T { gameObject = this };
            Components.Add(component);
            if (_active) Engine.Tell(component, "OnEnable");
            return component;
        }

        public void SetActive(bool active)
        {
            _active = active;
            foreach (Component component in Components.ToArray()) Engine.Tell(component, active ? "OnEnable" : "OnDisable");
        }
    }

    public static class Engine
    {
        public static readonly List<GameObject> Objects = new List<GameObject>();

        public static void Tell(object component, string message)
        {
            MethodInfo method = component.GetType().GetMethod(message, BindingFlags.Instance | BindingFlags.NonPublic | BindingFlags.Public);
            if (method != null) method.Invoke(component, null);
        }

        public static void Frame(string message)
        {
            foreach (GameObject one in Objects.ToArray())
                foreach (Component component in one.Components.ToArray()) Tell(component, message);
        }
    }

    public static class Time
    {
        public static float deltaTime = 0.015f;
        public static double unscaledTimeAsDouble { get { return MonotonicClock.NowNs / 1e9; } }
    }

    public static class Application
    {
        public static bool runInBackground;
        public static string productName = "stub";
    }

    public static class Debug
    {
        public static readonly List<object> Said = new List<object>();

        public static void Log(object message, Object context)
        {
            Said.Add("log " + message);
        }

        public static void LogWarning(object message, Object context)
        {
            Said.Add("warning " + message);
        }

        public static void LogError(object message, Object context)
        {
            Said.Add("error " + message);
        }

        public static void LogException(Exception error, Object context)
        {
            Said.Add("exception " + error.Message);
        }
    }

    public sealed class SerializeFieldAttribute : Attribute
    {
    }

    public sealed class TextAreaAttribute : Attribute
    {
    }

    public sealed class DisallowMultipleComponentAttribute : Attribute
    {
    }

    public sealed class TooltipAttribute : Attribute
    {
        public TooltipAttribute(string text)
        {
        }
    }

    public sealed class RangeAttribute : Attribute
    {
        public RangeAttribute(float min, float max)
        {
        }
    }

    public sealed class AddComponentMenuAttribute : Attribute
    {
        public AddComponentMenuAttribute(string name)
        {
        }
    }

    public enum RuntimeInitializeLoadType
    {
        SubsystemRegistration,
    }

    public sealed class RuntimeInitializeOnLoadMethodAttribute : Attribute
    {
        public RuntimeInitializeOnLoadMethodAttribute(RuntimeInitializeLoadType type)
        {
        }
    }
}

namespace UnityEditor
{
    public sealed class InitializeOnLoadAttribute : Attribute
    {
    }

    public enum PlayModeStateChange
    {
        ExitingPlayMode,
    }

    public static class AssemblyReloadEvents
    {
        public delegate void AssemblyReloadCallback();

        public static event AssemblyReloadCallback beforeAssemblyReload;

        public static void Reload()
        {
            beforeAssemblyReload();
        }
    }

    public static class EditorApplication
    {
        public static event Action quitting;
        public static event Action<PlayModeStateChange> playModeStateChanged;

        public static void Quit()
        {
            quitting();
            playModeStateChanged(PlayModeStateChange.ExitingPlayMode);
        }
    }
}
