"""The environments: which packages a device needs (recipes), the steps that install them, and when to do it again."""
