namespace RtControl.Unity
{
    /// <summary>A component that says what the model is to read; RtControlClient asks it at the session's rate.</summary>
    public interface IRtObserver
    {
        /// <summary>One look at the world, in the main thread. Null: nothing to say now.</summary>
        string Observe();
    }
}
