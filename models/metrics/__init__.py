"""Whether calls are right, and how sure a share is: judges, scores, published predictions."""
